// Command bench measures the data path: how a 720p RGBA picture and small bags
// get from a producer to Python readers, beside a plain copy through a Unix
// socket measured in the same run. It prints a table and writes bench.json.
// docs/benchmarks.md says what the figures mean. Run it from the root of the
// source tree: make bench.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	if job := os.Getenv("TATOLAB_BENCH_PRODUCER"); job != "" {
		if err := produce(job); err != nil {
			fmt.Fprintln(os.Stderr, "producer:", err)
			os.Exit(1)
		}
		return
	}
	quick := flag.Bool("quick", false, "fewer frames: to see that it works, not for figures")
	out := flag.String("o", "bench.json", "where the figures go")
	python := flag.String("python", "/usr/bin/python3", "the interpreter of the Python processes")
	flag.Parse()
	result, err := measure(*python, *quick)
	if err == nil {
		result.print(os.Stdout)
		var data []byte
		if data, err = json.MarshalIndent(result, "", "  "); err == nil {
			err = os.WriteFile(*out, append(data, '\n'), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

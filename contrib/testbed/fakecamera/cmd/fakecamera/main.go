// Fakecamera runs a program with scripted cameras:
//
//	fakecamera SCRIPT.json COMMAND [ARGUMENT …]
//
// It exits as the program does.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: fakecamera SCRIPT.json COMMAND [ARGUMENT …]")
		os.Exit(2)
	}
	status, err := run(os.Args[1], os.Args[2], os.Args[3:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakecamera:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(file, command string, args []string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	script, err := fakecamera.Parse(data)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	cmd := exec.Command(command, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	bed, err := fakecamera.Start(cmd, script)
	if err != nil {
		return 0, err
	}
	defer bed.Close()
	var exit *exec.ExitError
	switch err := cmd.Wait(); {
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode(), nil
	case errors.As(err, &exit):
		return 0, fmt.Errorf("%s: %w", command, err)
	case err != nil:
		return 0, err
	}
	return 0, nil
}

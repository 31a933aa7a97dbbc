// Package name holds the one rule for names of streams, nodes and ports.
package name

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// MaxLength is the longest a name may be, in bytes (a cast name is ASCII).
const MaxLength = 63

// Cast makes raw URL-safe: lower case, accents dropped, every character
// outside a-z 0-9 - . _ ~ replaced by "-", runs of "-" folded, "-" trimmed
// from both ends, cut to MaxLength. What casts to nothing, "." or ".." is an
// error: such a name would vanish from an address or a path.
func Cast(raw string) (string, error) {
	var b strings.Builder
	dash := false
	for _, r := range norm.NFKD.String(raw) {
		if unicode.Is(unicode.Mn, r) {
			continue
		}
		r = unicode.ToLower(r)
		if !allowed(r) {
			r = '-'
		}
		if r == '-' {
			dash = true
			continue
		}
		if dash && b.Len() > 0 {
			b.WriteByte('-')
		}
		dash = false
		b.WriteRune(r)
	}
	cast := b.String()
	if len(cast) > MaxLength {
		cast = strings.TrimRight(cast[:MaxLength], "-")
	}
	switch cast {
	case "", ".", "..":
		return "", fmt.Errorf("%q is no usable name: it casts to %q; a name needs a letter or a digit", raw, cast)
	}
	return cast, nil
}

func allowed(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("-._~", r)
}

// Check returns an error unless s is a name that Cast leaves as it is.
func Check(s string) error {
	cast, err := Cast(s)
	if err != nil {
		return err
	}
	if cast != s {
		return fmt.Errorf("%q is no name: write it %q", s, cast)
	}
	return nil
}

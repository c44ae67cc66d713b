// Package printable makes text of untrusted origin safe to print.
//
// Programs, container images, virtual machines and other hosts choose names that an operator reads later, in
// `vrdma status`, in events and in a hook's messages. A control sequence in such a name could change the title of the
// operator's terminal, hide lines, or in some terminals type commands. Characters that reorder text could make one name look
// like another.
package printable

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text replaces every character that is not printable by a question mark: C0 and C1 controls, line ends, characters that
// change the direction of text, other invisible ones, and bytes that are not UTF-8. Printable text does not change.
func Text(s string) string {
	if Is(s) {
		return s
	}
	return strings.Map(func(r rune) rune { // an invalid byte is utf8.RuneError here
		if !isPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// Is reports whether Text would not change s.
func Is(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !isPrint(r) }) < 0
}

func isPrint(r rune) bool { return r != utf8.RuneError && unicode.IsPrint(r) }

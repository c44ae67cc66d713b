package printable

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"ib_write_bw":         "ib_write_bw",
		"zwölf 日本":            "zwölf 日本",
		"\x1b]0;title\a":      "?]0;title?",
		"\u009b2J":            "?2J", // CSI as one C1 control, in UTF-8
		"\x9b2J":              "?2J", // and as a byte
		"a\nb\rc\td":          "a?b?c?d",
		"\u202emoc.elpmaxe":   "?moc.elpmaxe", // right to left
		"\u2028\u200b\ufeff!": "???!",
		"half \xe6\x97":       "half ??",
	} {
		if got := Text(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
		if Is(in) != (in == want) {
			t.Errorf("Is(%q) = %v", in, Is(in))
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[2J\u009b\xff")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !Is(got) || !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\n\u009b") || Text(got) != got || Is(s) != (got == s) {
			t.Errorf("%q became %q", s, got)
		}
	})
}

package uverbs

import (
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

// FuzzMaybeSure: whatever a client leaves is cut into whole commands, of the one kind, one behind the
// other.
func FuzzMaybeSure(f *testing.F) {
	hdr := abi.CmdHeader{Command: abi.CmdModifyQP, InWords: 30}
	one := append(abi.Encode(nil, &hdr), make([]byte, 112)...)
	f.Add(one)
	f.Add(append(one, one...))
	f.Add(one[:100])
	f.Add([]byte{26, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		for at := 0; ; {
			first, rest, ok := MaybeSure(b[at:])
			if !ok {
				return
			}
			if len(first) < 8 || len(first)+len(rest) != len(b)-at || first[0] != abi.CmdModifyQP {
				t.Fatalf("%d and %d bytes of %d, command %d", len(first), len(rest), len(b)-at, first[0])
			}
			at += len(first)
		}
	})
}

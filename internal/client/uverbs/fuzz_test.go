package uverbs

import (
	"testing"

	"vrdma.dev/vrdma/internal/abi"
)

// FuzzParse is the parser alone: whatever it accepts lies inside the message.
func FuzzParse(f *testing.F) {
	legacy := abi.Encode(nil, &abi.CmdHeader{Command: abi.CmdCreateQP, InWords: 18, OutWords: 16})
	f.Add(abi.Encode(legacy, &abi.CreateQP{Response: 1}))
	ex := abi.Encode(nil, &abi.CmdHeader{Command: abi.FlagExtended | abi.ExCmdCreateQP, InWords: uint16(abi.Size[abi.ExCreateQP]() / 8), OutWords: 5})
	ex = abi.Encode(ex, &abi.ExCmdHeader{Response: 1, ProviderOutWords: 4})
	f.Add(abi.Encode(ex, &abi.ExCreateQP{}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c Call
		if c.parse(b) != nil {
			return
		}
		if len(c.in)+len(c.driverIn) > len(b) || c.cmd == nil || c.cmd.run == nil {
			t.Errorf("%x: request of %d and driver data of %d bytes for %v", b, len(c.in), len(c.driverIn), c.cmd)
		}
		if c.out < 0 || c.driverOut < 0 || c.out < c.cmd.response && c.response != 0 {
			t.Errorf("%x: room for %d and %d bytes", b, c.out, c.driverOut)
		}
	})
}

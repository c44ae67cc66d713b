package abitext

import (
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		flagText(accessNames, 0):       "0",
		flagText(accessNames, 5):       "LOCAL_WRITE|REMOTE_READ",
		flagText(accessNames, 1|1<<15): "LOCAL_WRITE|0x8000",
		Name(qpTypeNames, 2):           "RC",
		Name(qpTypeNames, 99):          "99",
		GID(ib.GID{0xfe, 0x80, 15: 1}): "fe80::1",
		mtuText(5):                     "4096",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

package credentials

import (
	"strings"
	"testing"
)

// TestMachineName: the name of a machine is found where QEMU and libvirt put it.
func TestMachineName(t *testing.T) {
	for line, want := range map[string]string{
		"qemu\x00-name\x00web\x00-m\x001G\x00":                   "web",
		"qemu\x00-name\x00guest=db-1,debug-threads=on\x00-S\x00": "db-1",
		"qemu\x00-name\x00debug-threads=on,guest=a,,b\x00":       "a,b",
		"qemu\x00-name\x00first\x00--name\x00second\x00":         "second",
		"qemu\x00-name\x00\x1b[2Jx\x00":                          "[2Jx",
		"qemu\x00-name\x00" + strings.Repeat("n", 100) + "\x00":  strings.Repeat("n", 64),
		"qemu\x00-name\x00process=x\x00":                         "",
		"qemu\x00-m\x001G\x00":                                   "",
		"qemu\x00-name":                                          "",
		"":                                                       "",
	} {
		if got := machineName([]byte(line)); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

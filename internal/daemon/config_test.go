package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadConfig(t *testing.T) {
	tests := []struct{ name, text, fails string }{
		{"complete", "socket: /run/s\naddr: [10.0.0.5]\nlimits: {qps: 10, memory: 4096}\n", ""},
		{"memory with a unit", "limits: {memory: 1Gi}\n", ""},
		{"empty", "", ""},
		{"a word of nobody", "sokcet: /run/s\n", "sokcet"},
		{"a wrong type", "limits: {qps: many}\n", "qps"},
		{"negative", "limits: {qps: -1}\n", "limits.qps is -1"},
		{"more than there are handles", "limits: {qps: 65537}\n", "limits.qps is 65537: an opened device can have at most 65536"},
		{"as many as there are handles", "limits: {qps: 65536, mrs: 1048576}\n", ""},
		{"more regions than handles", "limits: {mrs: 1048577}\n", "limits.mrs is 1048577"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := readConfig(path)
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("got %v, want %q", err, test.fails)
			}
		})
	}
}

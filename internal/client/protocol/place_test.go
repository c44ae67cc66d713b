package protocol

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestControlPlaces(t *testing.T) {
	bases := func(socket string, uid int) (out []string) {
		for _, p := range ControlPlaces(socket, uid) {
			if len(p) > 107 {
				t.Errorf("%s has %d bytes, a unix socket's path at most 107", p, len(p))
			}
			if strings.HasPrefix(p, strings.TrimSuffix(filepath.Dir(socket), "/")+"/") {
				t.Errorf("%s lies in the directory of %s, which containers get", p, socket)
			}
			out = append(out, filepath.Dir(filepath.Dir(p)))
		}
		return out
	}
	long := "/srv/" + strings.Repeat("a", 90) + "/v.sock"
	for _, test := range []struct {
		socket string
		uid    int
		want   []string
	}{
		{"/run/vrdma/vrdma.sock", 0, []string{"/run", "/run/user/0", "/tmp", "/var/tmp"}},
		{"/run/user/1000/vrdma/vrdma.sock", 1000, []string{"/run", "/run/user/1000", "/tmp", "/var/tmp"}},
		{"/run/user/1000/x.sock", 1000, []string{"/run", "/tmp", "/var/tmp"}},
		{"/tmp/vrdma-1000/vrdma.sock", 1000, []string{"/run", "/run/user/1000", "/tmp", "/var/tmp"}},
		{"/tmp/x.sock", 1000, []string{"/run", "/run/user/1000", "/var/tmp"}},
		{"/run/x.sock", 0, []string{"/tmp", "/var/tmp"}},
		{"/x.sock", 0, nil},
		{long, 4294967294, []string{"/run", "/run/user/4294967294", "/tmp", "/var/tmp"}},
	} {
		if got := bases(test.socket, test.uid); !slices.Equal(got, test.want) {
			t.Errorf("%s of %d: %v, want %v", test.socket, test.uid, got, test.want)
		}
	}
	if a, b := ControlPlaces("/run/a/v.sock", 0), ControlPlaces("/run/b/v.sock", 0); a[0] == b[0] {
		t.Errorf("two daemons share %s", a[0])
	}
}

// A socket without a control socket: looking for one does no harm.
func TestFindNoControl(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	if got := findControl(path); got != "" {
		t.Errorf("found %s for a socket that is not there", got)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := findControl(path); got != "" {
		t.Errorf("found %s, which nobody made", got)
	}
}

package tunnel

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestLoadKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.key")
	// Several concurrent callers get the same key.
	var keys [8]Key
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			var err error
			if keys[i], err = LoadKey(path); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, k := range keys {
		if k.Public() != keys[0].Public() {
			t.Fatal("two keys of one host")
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v, want mode 0600", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".key-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	again, err := LoadKey(path)
	if err != nil || again.Public() != keys[0].Public() {
		t.Fatalf("another key after a restart, or %v", err)
	}
}

// TestKeyOfWg: our public key equals the one that wg(8) derives from this private key.
func TestKeyOfWg(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.key")
	// RFC 7748, section 6.1: Alice's keys.
	if err := os.WriteFile(path, []byte("dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	public := k.Public()
	if got := hex.EncodeToString(public[:]); got != "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a" {
		t.Error(got)
	}
	back, err := ParsePublic(FormatPublic(public) + "\n")
	if err != nil || back != public {
		t.Errorf("%x, %v", back, err)
	}
}

func TestKeysThatAreNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "host.key")
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=\n", 0o644, "others can read"},
		{"", 0o600, "no private key"},
		{"dwdtCnMYpX08\n", 0o600, "no private key"},
		{strings.Repeat("A", 1000), 0o600, "no private key"},
	} {
		if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q, mode %04o: %v, want %q", c.text, c.mode, err, c.want)
		}
	}
	if _, err := LoadKey(filepath.Join(path, "no-directory")); err == nil {
		t.Error("a key where none can be")
	}
	for _, s := range []string{"", "x", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "dwdtCnMYpX08FsFyUbJmRd9ML4frwJkqsXf7pR25LCo=dwdt"} {
		if _, err := ParsePublic(s); err == nil {
			t.Errorf("%q is taken for a key", s)
		}
	}
}

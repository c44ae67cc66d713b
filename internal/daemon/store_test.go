package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A path that cannot be read, such as another user's home, is ignored.
func TestFirstReachable(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	below, absent, last := filepath.Join(file, "state.db"), filepath.Join(dir, "a/b.db"), filepath.Join(dir, "last.db")
	for _, c := range []struct {
		want  string
		paths []string
	}{
		{absent, []string{below, absent, last}},
		{file, []string{file, absent, last}},
		{last, []string{below, last}},
		{below, []string{below}},
	} {
		if got := firstReachable(c.paths); got != c.want {
			t.Errorf("of %q it takes %q, want %q", c.paths, got, c.want)
		}
	}
}

// Plain etcd on another machine is warned about.
func TestElsewhere(t *testing.T) {
	for endpoint, want := range map[string]bool{
		"127.0.0.1:2379": false, "[::1]:2379": false, "localhost:2379": false,
		"10.0.0.1:2379": true, "[fd00::1]:2379": true, "etcd-1:2379": true,
	} {
		if got := elsewhere(endpoint); got != want {
			t.Errorf("%s: %v, want %v", endpoint, got, want)
		}
	}
}

// TestStoreConfig: a mistake in the file of --store-config is named with file, line, field and value.
func TestStoreConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd.yaml")
	for _, test := range []struct{ text, want string }{
		{"user: vrdma\npasword: x\n", `:2: unknown field "pasword": choose among ca, certificate, copy, key, passwordFile, prefix, serverName, user`},
		{"user: vrdma\nca: /nowhere/ca.pem\n", `:2: ca is "/nowhere/ca.pem": no such file or directory`},
		{"user: [a, b]\n", ":1: user is a list: want one value"},
		{"user: a\nuser: b\n", ":2: user is in line 1, too: write it once"},
		{"- user\n", ":1: the file is a list: want ca"},
		{"user: a\n  b: [\n", ":2: "},
	} {
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readStoreConfig(path); err == nil || !strings.HasPrefix(err.Error(), path+test.want) {
			t.Errorf("%q: got %v, want %s%s", test.text, err, path, test.want)
		}
	}
	if err := os.WriteFile(path, []byte("user: vrdma\nprefix: /a\npasswordFile: "+path+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if cfg, err := readStoreConfig(path); err != nil || cfg.User != "vrdma" || cfg.Prefix != "/a" || cfg.PasswordFile != path {
		t.Errorf("got %+v, %v", cfg, err)
	}
}

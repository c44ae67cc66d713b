package etcd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/test/etcdtest"
)

func TestEndpoints(t *testing.T) {
	for name, want := range map[string][]string{
		"etcd://a:2379":                     {"a:2379"},
		"etcd://a:1,[2001:db8::1]:2,c:3":    {"a:1", "[2001:db8::1]:2", "c:3"},
		"etcd://a:2379/":                    {"a:2379"},
		"etcd://":                           nil,
		"etcd://a":                          nil,
		"etcd://a:1,":                       nil,
		"etcd://user:secret@a:1":            nil,
		"https://a:1":                       nil,
		"etcd://a:1/path":                   nil,
		"etcd://" + strings.Repeat(",", 99): nil,
	} {
		got, err := Endpoints(name)
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
}

// Wrong credentials are reported before the first request to etcd.
func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	open, empty, secret := write("open", "secret\n", 0o644), write("empty", "\n", 0o600), write("secret", "secret\r\nmore", 0o600)
	for want, cfg := range map[string]Config{
		"no such file":                 {CA: filepath.Join(dir, "none")},
		"no certificate in PEM":        {CA: secret},
		"certificate and key belong":   {Certificate: secret},
		"others can read this secret":  {Certificate: secret, Key: open},
		"the store's certificate":      {Certificate: secret, Key: secret},
		"user and passwordFile belong": {User: "u"},
		"chmod 0600":                   {User: "u", PasswordFile: open},
		"is empty":                     {User: "u", PasswordFile: empty},
		"does not end with /":          {Prefix: "/vrdma"},
	} {
		cfg.Endpoints = []string{"127.0.0.1:1"}
		if s, err := Open(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, not %v", want, err)
			if err == nil {
				s.Close()
			}
		}
	}
	cfg := Config{User: "u", PasswordFile: secret}
	if got, err := cfg.password(); got != "secret" || err != nil {
		t.Errorf("the password is %q, %v", got, err)
	}
}

// TestPassword: a user with a password can use the store, also after etcd has restarted or has rejected the user's token.
// The user's role limits the access.
func TestPassword(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	as := func(cfg *Config) { cfg.User, cfg.PasswordFile = etcdtest.User, c.PasswordFile }
	s := open(t, c, "s", as)
	commit(t, s, put("a", "1"))
	c.Members[0].Kill()
	untilState(t, s, store.Away)
	c.Members[0].Start()
	untilState(t, s, store.InStep)
	commit(t, s, put("a", "2"))

	// The tokens of a user that was deleted and created again are invalid.
	c.Ctl("user", "delete", etcdtest.User)
	c.Ctl("user", "add", etcdtest.User+":correct horse")
	c.Ctl("user", "grant-role", etcdtest.User, "vrdma")
	until(t, "a commit with a new token", func() bool {
		_, ok, err := s.Commit(nil, []store.Write{put("a", "3")})
		return ok && err == nil
	})
	untilState(t, s, store.InStep)

	cfg := config(c, "s")
	cfg.Prefix, cfg.fresh = "/others/", 8*firstTime
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("below another prefix: %v", err)
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg = config(c, "s")
	cfg.User, cfg.PasswordFile, cfg.fresh = etcdtest.User, wrong, 8*firstTime
	if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "password") {
		t.Errorf("with a wrong password: %v", err)
	}
}

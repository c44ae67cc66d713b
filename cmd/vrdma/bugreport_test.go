package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for _, text := range []string{
		"store: etcd://root:hunter2@10.0.0.1:2379", "password: hunter2", `"password": "hunter2 and more"`, "passwd=hunter2", "VRDMA_TOKEN=hunter2",
		"PrivateKey = hunter2", "private-key: 'hunter2'", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY-----\nhunter2",
	} {
		if got := redact([]byte(text)); bytes.Contains(got, []byte("hunter2")) {
			t.Errorf("%q: got %q", text, got)
		}
	}
	for _, text := range []string{"passwordFile: /etc/vrdma/password", "tunnelKey: /var/lib/vrdma/key", "a@b", "store: etcd://10.0.0.1:2379", "publicKey: abc="} {
		if got := redact([]byte(text)); string(got) != text {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("password: ", "x")
	f.Fuzz(func(t *testing.T, before, secret string) {
		if len(secret) < 8 || strings.ContainsAny(secret, " \t\r\n\v\f,}\"'") || strings.Contains("password: [removed]", secret) || strings.Contains(before, secret) {
			return
		}
		if got := redact([]byte(before + "\npassword: " + secret)); bytes.Contains(got, []byte("\npassword: "+secret)) {
			t.Fatalf("got %q", got)
		}
	})
}

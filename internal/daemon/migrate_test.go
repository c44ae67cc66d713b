package daemon

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/server"
)

// Only the state that a host of the same store has sealed is accepted, whole and unchanged.
func TestSeal(t *testing.T) {
	secret := []byte(strings.Repeat("s", 32))
	st := &movedState{NIC: "red/web", From: "a", Revision: 7, Counted: "{}", State: &server.MovedNIC{NIC: server.NICState{Name: "red/web"}}}
	sealed, err := seal("test", st, secret)
	if err != nil {
		t.Fatal(err)
	}
	got, err := unseal(sealed, secret)
	if err != nil || got.NIC != st.NIC || got.From != "a" || got.Revision != 7 || got.State.NIC.Name != "red/web" {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := unseal(sealed, []byte(strings.Repeat("t", 32))); err == nil {
		t.Error("a state with another secret is accepted")
	}
	for i := range sealed {
		b := append([]byte(nil), sealed...)
		if b[i] ^= 1; b[i] == sealed[i] {
			t.Fatal("no change")
		}
		if _, err := unseal(b, secret); err == nil {
			t.Fatalf("a state with another byte %d is accepted", i)
		}
	}
	for n := range sealed {
		if _, err := unseal(sealed[:n], secret); err == nil {
			t.Fatalf("%d of %d bytes are accepted", n, len(sealed))
		}
	}
	if _, err := unseal(append(sealed, 0), secret); err == nil {
		t.Error("a longer state is accepted")
	}
}

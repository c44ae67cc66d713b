package filecopy

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
)

const (
	nonceSize   = 32
	proofSize   = sha256.Size
	sessionSize = 16
	// leastKey is the minimum length of a key. An eavesdropper can brute-force weak keys offline.
	leastKey = 16
)

// NewKey returns a random key.
func NewKey() []byte { return []byte(rand.Text()) }

// ReadKey reads a key from a file that only its owner can read. Surrounding spaces are ignored.
func ReadKey(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key file %s: others can read it (mode %#o): chmod 600 %s", path, info.Mode().Perm(), path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key file: %w", err)
	}
	if b = bytes.TrimSpace(b); len(b) < leastKey {
		return nil, fmt.Errorf("key file %s: a key of %d bytes, want at least %d: head -c 32 /dev/urandom | base64 > %s", path, len(b), leastKey, path)
	}
	return b, nil
}

// proof shows that a side knows the key. It covers both nonces and the purpose of the connection. The proofs of the two sides differ,
// so that neither can be reflected.
func proof(key []byte, side string, c *challenge, a *answer) (p [proofSize]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("vrdma cp 1 " + side + "\x00"))
	h.Write(c.Nonce[:])
	h.Write(a.Nonce[:])
	h.Write(a.Session[:])
	h.Write([]byte{c.Version, a.Version, a.Stream})
	h.Sum(p[:0])
	return p
}

var errKey = errors.New("the key is wrong")

// greet is the server's side of the handshake. It returns the purpose of the connection. With a nil key every client is accepted.
func greet(ctx context.Context, c conn, key []byte) (*answer, error) {
	ch := &challenge{Version: ProtocolVersion, Public: key == nil}
	rand.Read(ch.Nonce[:])
	if err := c.send(ch); err != nil {
		return nil, err
	}
	m, err := c.recv(ctx)
	if err != nil {
		return nil, err
	}
	a, ok := m.(*answer)
	if !ok {
		return nil, violation("%T, not an answer to the challenge", m)
	}
	if a.Version != ProtocolVersion {
		return nil, refuse(c, fmt.Errorf("version %d of the protocol, this is %d: use the same vrdma on both sides", a.Version, ProtocolVersion))
	}
	if key != nil {
		if p := proof(key, "client", ch, a); !hmac.Equal(p[:], a.Proof[:]) {
			return nil, refuse(c, errKey)
		}
	}
	return a, c.send(&welcome{Proof: proof(key, "server", ch, a)})
}

// refuse sends the reason to the peer and returns it as the error.
func refuse(c conn, err error) error {
	if c.send(&refusal{Text: err.Error()}) == nil {
		linger(c)
	}
	return err
}

// A RefusedError is the reason that a peer gave for a refusal.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return "the other side refuses: " + e.Text }

// introduce is the client's side of the handshake.
func introduce(ctx context.Context, c conn, key []byte, a *answer) error {
	m, err := c.recv(ctx)
	if err != nil {
		return err
	}
	if r, ok := m.(*refusal); ok {
		return &RefusedError{r.Text}
	}
	ch, ok := m.(*challenge)
	if !ok {
		return violation("%T, not a challenge", m)
	}
	switch {
	case ch.Version != ProtocolVersion:
		return &RefusedError{fmt.Sprintf("it speaks version %d of the protocol, this is %d: use the same vrdma on both sides", ch.Version, ProtocolVersion)}
	case !ch.Public && key == nil:
		return &RefusedError{"it wants a key: give --key-file"}
	case ch.Public && key != nil:
		return &RefusedError{"it asks for no key, so it may be anybody: leave out --key-file if that is right"}
	}
	a.Version = ProtocolVersion
	rand.Read(a.Nonce[:])
	a.Proof = proof(key, "client", ch, a)
	if err := c.send(a); err != nil {
		return err
	}
	if m, err = c.recv(ctx); err != nil {
		return err
	}
	switch m := m.(type) {
	case *refusal:
		return &RefusedError{m.Text}
	case *welcome:
		if p := proof(key, "server", ch, a); key != nil && !hmac.Equal(p[:], m.Proof[:]) {
			return &RefusedError{"it does not know the key itself: this is another server than you think"}
		}
		return nil
	default:
		return violation("%T, not a welcome", m)
	}
}

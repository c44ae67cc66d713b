package tunnel

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A Key is a private WireGuard key (Curve25519).
type Key struct{ private *ecdh.PrivateKey }

// NewKey generates a key.
func NewKey() (Key, error) {
	k, err := ecdh.X25519().GenerateKey(rand.Reader)
	return Key{k}, err
}

// Public returns the public key, which identifies the host.
func (k Key) Public() [32]byte { return [32]byte(k.private.PublicKey().Bytes()) }

// ParsePublic parses a public key in the format of `wg pubkey`.
func ParsePublic(s string) ([32]byte, error) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(s))
	if err != nil || len(b) != 32 {
		return [32]byte{}, fmt.Errorf("%q is no WireGuard key: want 32 bytes in base64, 44 characters, as wg pubkey prints them", s)
	}
	if [32]byte(b) == [32]byte{} {
		return [32]byte{}, errors.New("a WireGuard key that is all zero belongs to nobody: give the one that wg pubkey prints")
	}
	return [32]byte(b), nil
}

// FormatPublic is the inverse of ParsePublic.
func FormatPublic(key [32]byte) string { return base64.StdEncoding.EncodeToString(key[:]) }

// LoadKey reads the key in a file, in the format of `wg genkey`, and creates the file if it does not exist. Only the owner
// may have access to the file: any reader of it can impersonate this host.
func LoadKey(path string) (Key, error) {
	k, err := readKey(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return k, err
	}
	if k, err = NewKey(); err != nil {
		return Key{}, err
	}
	if err := writeKey(path, k); err != nil {
		return Key{}, fmt.Errorf("keep the host's private key: %w", err)
	}
	return readKey(path) // another daemon may have created it first
}

// readKey reads a key.
func readKey(path string) (Key, error) {
	f, err := os.Open(path)
	if err != nil {
		return Key{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Key{}, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Key{}, fmt.Errorf("%s has mode %04o: others can read this host's private key. If they may have, delete it, and a new one is made; else chmod 600 it", path, info.Mode().Perm())
	}
	text := make([]byte, 64)
	n, _ := f.Read(text)
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text[:n])))
	if err != nil || len(b) != 32 {
		return Key{}, fmt.Errorf("%s holds no private key as wg genkey prints it: put the right one back, or delete it, and a new one is made", path)
	}
	k, err := ecdh.X25519().NewPrivateKey(b)
	return Key{k}, err
}

// writeKey creates a file with a key atomically, unless the file exists.
func writeKey(path string, k Key) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".key-*") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(k.private.Bytes()) + "\n")
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

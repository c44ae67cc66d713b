package daemon

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"

	"vrdma.dev/vrdma/internal/exit"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// guidSeed is the seed of the GUIDs of declared NICs. It is the same after a restart and differs between hosts and sockets.
// On a machine without an ID it is random, and an upgrade hands it over: programs know their device by its GUID.
func guidSeed(socket string) []byte {
	machine, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(machine) < 32 {
		return []byte(rand.Text())
	}
	return append(machine, socket...)
}

// randomGUID is a random EUI-64 with the bit for local administration.
func randomGUID() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	b[0] = b[0]&^1 | 2
	return binary.BigEndian.Uint64(b[:])
}

// identity distinguishes this daemon from others that use the same host name.
func identity(seed []byte) string {
	sum := sha256.Sum256(append([]byte("identity"), seed...))
	return hex.EncodeToString(sum[:16])
}

// hostName is the name of this host: --host-name, else the machine's.
func hostName(flag string) (string, error) {
	if flag != "" {
		if !(tenant.Key{Kind: tenant.KindHost, Name: flag}).Valid() {
			return "", exit.Usage("--host-name %s: want a host's name, like node-7 or node7.example.com", flag)
		}
		return flag, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", exit.Lacks("the host has no name: %w; give it one with --host-name", err)
	}
	return host, nil
}

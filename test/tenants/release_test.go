package tenants

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/test/harness"
)

// Running containers keep the libvrdma.so that they were started with, and a newer daemon serves them: here the library
// of the commit before the last change of the protocol. Without a git history, and in the long form, today's library
// claims the oldest supported version.
func TestOlderLibrary(t *testing.T) {
	harness.Need(t, "ibv_rc_pingpong", "rping", "gcc", "make", "tar", "git")
	if library := harness.LibraryBefore(t); library != "" {
		t.Run("of the commit before", func(t *testing.T) { older(t, library) })
		if !harness.All() {
			return // the compilation takes longer than the rest of the test
		}
	}
	t.Run("that says it is the oldest", func(t *testing.T) { older(t, libraryOfVersion(t, protocol.OldestVersion)) })
}

// older runs programs with an older library at the listeners of declared NICs.
func older(t *testing.T, library string) {
	d := start(t, example(t))
	content, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	// The NICs' directories link to this one file, which keeps its inode.
	if err := os.WriteFile(d.place.Library(), content, 0o755); err != nil {
		t.Fatal(err)
	}
	used := strings.Fields(d.at("red/web").run(t, "printenv", "LD_PRELOAD"))
	if len(used) != 1 {
		t.Fatalf("LD_PRELOAD is %q, want one library", used)
	}
	if now, err := os.ReadFile(used[0]); err != nil || string(now) != string(content) {
		t.Fatalf("%s is not the older library: %v", used[0], err)
	}
	d.both(t, func(of string) *harness.Conversation {
		tcp := harness.FreePort(t)
		server, client := pingpong(tcp)
		server, client = append(server, "-e"), append(client, "-e") // events: an older library arms by command
		return harness.Converse(t, tcp, d.at(of+"/web"), server, d.at(of+"/db"), client)
	})
	d.both(t, func(of string) *harness.Conversation {
		server := d.at(of+"/web").launch(t, "rping", "-s", "-a", "10.1.0.1", "-V", "-C", "50")
		d.listening(t, of+"/web")
		return &harness.Conversation{Server: server, Client: d.at(of+"/db").launch(t, "rping", "-c", "-a", "10.1.0.1", "-V", "-C", "50")}
	})
	d.stream(t, "red/web", "red/db", messages).OK(t, minute)
}

// libraryOfVersion builds today's library with another version of the protocol.
func libraryOfVersion(t *testing.T, version int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "shim"), os.DirFS(filepath.Join(harness.Root(), "shim"))); err != nil {
		t.Fatal(err)
	}
	header := filepath.Join(dir, "shim", "protocol.h")
	text, err := os.ReadFile(header)
	if err != nil {
		t.Fatal(err)
	}
	text = harness.ProtocolNumber.ReplaceAll(text, fmt.Appendf(nil, "#define VRDMA_PROTOCOL %du", version))
	if err := os.WriteFile(header, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := harness.ProtocolOf(t, dir); got != fmt.Sprint(version) {
		t.Fatalf("protocol %s, want %d", got, version)
	}
	return harness.MakeLibrary(t, dir)
}

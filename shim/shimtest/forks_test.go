package shimtest

import (
	"strings"
	"testing"
)

// TestSocketsFork: what a fork child may do with inherited sockets, over the stub of rsockets' preload library, which
// aborts when a child touches an rsocket of its parent. The user gets one message about what cannot work, and none
// about what works. The program is test/testdata/forks.c, which test/sockets runs over the real library.
func TestSocketsFork(t *testing.T) {
	const (
		connection = "cannot use an RDMA connection of its parent"
		listener   = "uses a listener of its parent"
	)
	flags := strings.Fields("-std=gnu11 -D_GNU_SOURCE -O1 -g -Wall -Wextra -Werror -pthread")
	stub := compile(t, "rspreload.so", append(flags, "-fPIC", "-shared", "testdata/rspreload_stub.c")...)
	bin := compile(t, "forks", append(flags, "../../test/testdata/forks.c")...)
	libraries := map[string]string{
		"plain":     socketsLibrary(t) + ":" + stub,
		"sanitized": strings.Join(append(sanitizers(t), sanitizedSockets(t), stub), ":"),
	}
	for _, c := range []struct {
		name, says string
	}{
		{"reuse", ""},
		{"use", connection},
		{"leave", ""},
		{"grandchild", connection},
		{"threads", ""},
		{"epolls", connection},
		{"copies", connection},
		{"range", ""},
		{"vforks", ""},
		{"executes", connection},
		{"executes_fast", connection},
		{"spawns", ""},
		{"listens", listener},
		{"serves", connection},
		{"fresh", ""},
		{"clones", connection},
	} {
		for library, preload := range libraries {
			t.Run(c.name+"/"+library, func(t *testing.T) {
				t.Parallel()
				cmd := command(t, startFake(t), preload, bin, c.name)
				if library == "sanitized" {
					cmd.Env = append(cmd.Env, sanitizerOptions...)
				}
				text, err := cmd.CombinedOutput()
				out := string(text)
				if err != nil || !strings.Contains(out, "ok "+c.name+"\n") {
					t.Fatalf("%v\n%s", err, out)
				}
				want := 0
				if c.says != "" {
					want = 1
				}
				if n := strings.Count(out, "vrdma: "); n != want || !strings.Contains(out, c.says) {
					t.Errorf("the library says %d things, want %d: %q\n%s", n, want, c.says, out)
				}
			})
		}
	}
}

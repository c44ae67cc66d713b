package memory

import (
	"slices"
	"strings"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

// begins reports whether name has one of the prefixes.
func begins(name string, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// only skips, in the short form, the cases of a way that start with none of the prefixes.
func only(of map[string][]string) func(way, string) bool {
	return func(w way, name string) bool {
		prefixes, found := of[w.name]
		return found && !harness.All() && !begins(name, prefixes...)
	}
}

// Threads that wait on locks in a page wake up, whatever happens to the page.
func TestWaiters(t *testing.T) {
	runCases(t, "waiters", everyWay, only(map[string][]string{
		"root":      {"word_both", "robust_both", "inherit_both", "inherit_contended"},
		"container": {"word", "inherit_both", "inherit_contended"},
		"untraced":  {"word_both", "inherit_contended"},
		"confined":  {"word_both"},
		"deadly":    {"word_both"},
	}))
}

// The kernel's own accesses see the right page: O_DIRECT, AIO, io_uring, pinned pages.
func TestKernel(t *testing.T) {
	runCases(t, "kernel", []way{root, user, container, untraced, confined}, only(map[string][]string{
		"root":     {"direct_buffer", "pending_recv", "fixed_during", "fixed_then_reg", "ring_comes"},
		"untraced": {"direct_buffer", "fixed_during", "fixed_in_huge_page"},
		"confined": {"direct_buffer", "fixed_during", "pending_recv_alone"},
	}))
}

// System calls of other threads and processes lose nothing and are not interrupted.
func TestCalls(t *testing.T) {
	runCases(t, "calls", everyWay, only(map[string][]string{
		"root":      {"seqpacket", "remote_alone", "uninterrupted"},
		"container": {"seqpacket", "signal_stack", "remote", "uninterrupted", "stores"},
		"untraced":  {"datagrams", "remote_threads", "stores"},
		"confined":  {"event_counts", "remote_alone"},
		"deadly":    {"stores"},
	}))
}

// Attributes of mappings, limits and debuggers do not change. Pages are replaced only where threads can be halted.
func TestTraits(t *testing.T) {
	d := device(t)
	bin := compile(t, "traits")
	leave := only(map[string][]string{
		"root":     {"locked", "child", "huge", "guard", "many", "debugged", "replaced", "limited"},
		"untraced": {"replaced", "child_alive", "limited_file_size"},
		"confined": {"replaced", "child_alive"},
		"deadly":   {"replaced"},
	})
	// What a seccomp filter forbids (shim/README.md, "What it cannot do"): reading a NUMA policy, and the memory of a
	// process that is not dumpable.
	filtered := map[string]bool{"memory_policy": true, "undumpable": true}
	for _, w := range everyWay {
		env := []string{"MEM_ALONE=any", "MEM_THREADS=own"}
		if w == root || w == user || w == container {
			env[0] = "MEM_ALONE=own"
		}
		if strings.Contains(w.deny, "ptrace") {
			env[1] = "MEM_THREADS=foreign"
		}
		t.Run(w.name, func(t *testing.T) {
			for _, name := range cases(t, bin) {
				if leave(w, name) || name == "many_regions" && w != user && !harness.All() || filtered[name] && w.deny != "" {
					continue
				}
				t.Run(name, func(t *testing.T) { runCase(t, d, w, bin, name, env...) })
			}
		})
	}
}

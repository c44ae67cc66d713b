package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/examples"
	"vrdma.dev/vrdma/test/harness"
)

// TestExercise: the exercise of `vrdma lab exercise` builds without warnings and says what is missing; with the solution in its place the client reads
// every number right.
func TestExercise(t *testing.T) {
	d := harness.Device(t)
	dir := filepath.Join(t.TempDir(), "exercise")
	harness.Spawn(t, exec.Command(harness.Binary(), "lab", "exercise", dir)).OK(t, minute)
	build := func() {
		t.Helper()
		if out, err := exec.Command("make", "-s", "-C", dir, "kv_server", "kv_client", "OUT=.").CombinedOutput(); err != nil {
			t.Fatalf("make: %v\n%s", err, out)
		}
	}
	server := func() (s *harness.Process, port string) {
		n := harness.FreePort(t)
		s = d.Launch(t, filepath.Join(dir, "kv_server"), "-p", strconv.Itoa(n))
		d.AwaitManaged(t, s, n)
		return s, strconv.Itoa(n)
	}
	client := filepath.Join(dir, "kv_client")

	harness.Need(t, "gcc", "make")
	build()
	s, port := server()
	c := d.Launch(t, client, "-p", port, "-n", "50")
	if c.Wait(t, minute) != 1 || !strings.Contains(c.Output(), "50 reads by RPC") || !strings.Contains(c.Output(), "one_sided() is not written yet") {
		t.Errorf("the exercise without its solution: %s\n%s", c.Fate(), c.Output())
	}
	s.End()

	path := filepath.Join(dir, "kv_client.c")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	solution, err := examples.Solution()
	if err != nil || strings.Contains(string(text), "rdma_post_read") {
		t.Fatalf("the exercise contains its solution, or there is none: %v", err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), examples.Unwritten, solution, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(client); err != nil {
		t.Fatal(err)
	}
	build()
	s, port = server()
	if out := d.Run(t, minute, client, "-p", port, "-n", "50"); !strings.Contains(out, "50 one-sided reads: ") {
		t.Errorf("the exercise with its solution:\n%s", out)
	}
	if said := s.OK(t, minute); !strings.Contains(said, "handled 102 messages") {
		t.Errorf("the server says\n%s", said)
	}
}

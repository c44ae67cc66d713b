package sockets

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"vrdma.dev/vrdma/test/harness"
)

const (
	allRDMA       = "1 connection went over RDMA, none over TCP"
	allTCP        = "0 connections went over RDMA, 1 over TCP"
	handedOver    = "was made by fork and cannot use an RDMA connection of its parent"
	listenerTaken = "was made by fork and uses a listener of its parent"
)

// Every kind of fork leaves the parent's connections unchanged, with either library, also beside threads that create
// sockets.
func TestForkCalls(t *testing.T) {
	bin := harness.CompileWith(t, "forks", "gcc")
	for _, lib := range libraries(t) {
		t.Run(lib.name, func(t *testing.T) {
			d := harness.Device(t)
			for _, name := range []string{
				"reuse", "use", "leave", "grandchild", "epolls", "copies", "range", "vforks", "executes", "executes_fast", "spawns",
				"listens", "serves", "fresh", "clones", "threads",
			} {
				if out := lib.launch(t, d, bin, name).OK(t, minute); !strings.Contains(out, "ok "+name) {
					t.Errorf("%s:\n%s", name, out)
				}
			}
			d.Unmanaged(t)
		})
	}
}

// A server that forks for other work than its connections stays on RDMA: redis saves its data in a child, which closes
// the inherited descriptors and opens files.
func TestForkRedis(t *testing.T) {
	harness.Need(t, "redis-check-rdb", "redis-cli")
	for _, lib := range libraries(t) {
		t.Run(lib.name, func(t *testing.T) {
			d := harness.Device(t)
			dir, port := harness.Directory(t, nil), harness.FreePort(t)
			lib.link(t, dir)
			file := filepath.Join(dir, "file")
			if err := os.WriteFile(file, make([]byte, fileSize), 0o644); err != nil {
				t.Fatal(err)
			}
			s := lib.launch(t, d, filepath.Join(dir, "redis-server"), "--bind", "127.0.0.1", "--port", fmt.Sprint(port), "--save", "", "--dir", dir)
			d.AwaitManaged(t, s, port)
			ask := func(commands string) string {
				t.Helper()
				out := lib.launch(t, d, "sh", "-c", fmt.Sprintf("printf '%s' | redis-cli -p %d", commands, port)).OK(t, minute)
				if !strings.Contains(out, allRDMA) {
					t.Fatalf("not over RDMA:\n%s\nserver:\n%s", out, s.Output())
				}
				return out
			}
			for range 2 {
				if out := ask(`set key value\nbgsave\nget key\n`); !strings.Contains(out, "value") {
					t.Fatalf("the connection that asked for the fork ended:\n%s", out)
				}
				var saved string
				if !harness.Poll(minute, func() bool {
					saved = ask(`info persistence\n`)
					return strings.Contains(saved, "rdb_bgsave_in_progress:0")
				}) || !strings.Contains(saved, "rdb_last_bgsave_status:ok") {
					t.Fatalf("redis did not save:\n%s\nserver:\n%s", saved, s.Output())
				}
			}
			d.Carried(t, harness.Traffic{Bytes: fileSize}, func() {
				lib.launch(t, d, "sh", "-c", fmt.Sprintf("redis-cli -p %d -x set key <%s", port, file)).OK(t, minute)
			})
			s.Signal(syscall.SIGTERM)
			if out := s.OK(t, minute); strings.Contains(out, "vrdma: redis-server") || !strings.Contains(out, "none over TCP") {
				t.Errorf("redis was told of a fork, or used TCP:\n%s", out)
			}
		})
	}
}

// A server with a process for each connection: the first connection fails, the user gets a message, the server lives
// on, and the next connections use TCP.
func TestForkPostgres(t *testing.T) {
	harness.Need(t, "cp")
	user := harness.Nobody() // postgres refuses root
	d := harness.Start(t, harness.Options{User: user})
	d.NoLeaks(t)
	dir, port := harness.Directory(t, user), harness.FreePort(t)
	for _, name := range []string{"postgresql-15", "postgresql-client-15"} { // where no test can read it
		if out, err := exec.Command("cp", "-r", harness.Unpacked(t, name)+"/usr", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	bin := func(name string) string { return filepath.Join(dir, "usr/lib/postgresql/15/bin", name) }
	data := filepath.Join(dir, "data")
	d.LaunchWith(t, []string{"--quiet"}, bin("initdb"), "-A", "trust", "-U", "postgres", "-N", "-D", data).OK(t, minute)
	s := machine.launch(t, d, bin("postgres"), "-D", data, "-F", "-h", "127.0.0.1", "-p", fmt.Sprint(port), "-k", dir)
	s.Printed(t, "ready to accept connections", minute)
	d.AwaitManaged(t, s, port)
	psql := func() *harness.Process {
		return machine.launch(t, d, bin("psql"), "-h", "127.0.0.1", "-p", fmt.Sprint(port), "-U", "postgres", "-c", "select 6 * 7", "postgres")
	}
	first := psql()
	if first.Wait(t, minute) == 0 {
		t.Errorf("a connection over RDMA survived a fork:\n%s", first.Output())
	}
	s.Printed(t, handedOver, minute)
	d.AwaitVacant(t, port)
	for range 2 {
		if out := psql().OK(t, minute); !strings.Contains(out, "42") || !strings.Contains(out, allTCP) {
			t.Errorf("want an answer over TCP:\n%s", out)
		}
	}
	s.Signal(syscall.SIGINT)
	out := s.OK(t, minute)
	if strings.Count(out, handedOver) != 1 || !strings.Contains(out, "1 connection went over RDMA, 2 over TCP (1 process made by fork") {
		t.Errorf("want one line when it happens and one at the end:\n%s", out)
	}
}

// A server whose worker processes accept the connections: they use TCP.
func TestForkWorkers(t *testing.T) {
	harness.Need(t, "curl")
	for _, lib := range libraries(t) {
		t.Run(lib.name, func(t *testing.T) {
			d := harness.Device(t)
			dir, port := harness.Directory(t, nil), harness.FreePort(t)
			lib.link(t, dir)
			conf := strings.NewReplacer("PORT", fmt.Sprint(port), "DIR", dir, "master_process off", "user root; worker_processes 2").Replace(nginxConf)
			for name, text := range map[string]string{"file": "hello", "nginx.conf": conf} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			s := lib.launch(t, d, filepath.Join(dir, "nginx"), "-e", filepath.Join(dir, "nginx.log"), "-c", filepath.Join(dir, "nginx.conf"))
			logged := func() int { // nginx makes its log its standard error
				text, _ := os.ReadFile(filepath.Join(dir, "nginx.log")) // not there yet
				return strings.Count(string(text), listenerTaken)
			}
			if !harness.Poll(minute, func() bool { return logged() > 0 || s.Ended(0) }) || s.Ended(0) {
				t.Fatalf("nobody was told: %s\n%s", s.Fate(), s.Output())
			}
			d.AwaitVacant(t, port)
			for range 3 {
				if out := lib.launch(t, d, "curl", "-sS", fmt.Sprintf("http://127.0.0.1:%d/file", port)).OK(t, minute); !strings.Contains(out, "hello") || !strings.Contains(out, allTCP) {
					t.Errorf("want the file over TCP:\n%s", out)
				}
			}
			s.Signal(syscall.SIGTERM)
			if out := s.OK(t, minute); logged() != 1 || !strings.Contains(out, "0 connections went over RDMA, 3 over TCP (3 connections to a server that hands") {
				t.Errorf("want one line when it happens and one at the end:\n%s", out)
			}
		})
	}
}

// Package course boots the two machines of the lab: a server and a client with the kernel's rxe, connected by a wire, each with a serial console
// to log in.
//
//	vrdma lab vms ──▶ QEMU "server" 10.77.0.1 ══ wire ══ QEMU "client" 10.77.0.2
//	                     │ ttyS1                            │ ttyS1
//	vrdma lab console DIR/server                vrdma lab console DIR/client
//
// The guests are emulated and need no root. They have rdma-core's programs, perftest, and the C programs of the lab.
// cmd/vrdma calls it.
package course

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/instrument/rxeguest"
)

// bootTimeout is how long a guest may take to be ready. Emulation is slow.
const bootTimeout = 4 * time.Minute

// program is what init runs in a guest.
const program = "/usr/bin/course"

// Guests are the two virtual machines of the lab.
type Guests struct {
	Image string // the directory of rxeguest.Image
	Dir   string // where consoles and files are; short, because it holds sockets
	// Programs are the C programs of the lab, built.
	Programs []string
}

// names are the machines; the number of an address is the place in the list and one.
var names = []string{"server", "client"}

// address of a machine.
func address(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

// Run boots the machines, calls ready with the path of each console, and ends with ctx or with the first machine that ends.
func (m *Guests) Run(ctx context.Context, ready func(name, address, console string)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(names))
	running := 0
	defer func() {
		cancel() // kills the machines
		for range running {
			<-ended
		}
	}()
	for i, name := range names {
		initramfs, err := m.initramfs(ctx, i)
		if err != nil {
			return err
		}
		line, err := net.Listen("unix", m.path(name+".ready"))
		if err != nil {
			return err
		}
		defer line.Close()
		c := m.command(ctx, i, initramfs)
		var said strings.Builder
		c.Stderr = &said
		if err := c.Start(); err != nil {
			return err
		}
		running++
		go func() {
			err := c.Wait()
			ended <- fmt.Errorf("the %s has ended: %w", name, errors.Join(err, errors.New(strings.TrimSpace(said.String()))))
		}()
		line.(*net.UnixListener).SetDeadline(time.Now().Add(bootTimeout))
		came := make(chan error, 1)
		go func() {
			conn, err := line.Accept()
			if err != nil {
				came <- err
				return
			}
			context.AfterFunc(ctx, func() { conn.Close() })
			conn.SetReadDeadline(time.Now().Add(bootTimeout))
			_, err = bufio.NewReader(conn).ReadString('\n')
			came <- err
		}()
		select {
		case err := <-came:
			if err != nil {
				text, _ := os.ReadFile(m.path(name + ".log")) // it may be empty
				return fmt.Errorf("the %s does not boot: %w\n%s", name, err, text)
			}
		case err := <-ended:
			running--
			return err
		case <-ctx.Done():
			return nil
		}
		ready(name, address(i), m.path(name))
	}
	select {
	case err := <-ended:
		running--
		return err
	case <-ctx.Done():
		return nil
	}
}

func (m *Guests) path(name string) string { return filepath.Join(m.Dir, name) }

// command is QEMU's command line of a machine.
func (m *Guests) command(ctx context.Context, i int, initramfs string) *exec.Cmd {
	name, other := names[i], names[1-i]
	g := rxeguest.Guest{
		Image: m.Image, Initramfs: initramfs, IP4: address(i) + "/24", IP6: fmt.Sprintf("fd00:77::%d/64", i+1), MTU: 4500, Program: program,
		Network: fmt.Sprintf("dgram,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", m.path(name+".wire"), m.path(other+".wire")),
		Line:    "socket,path=" + m.path(name+".ready"), Console: m.path(name + ".log"),
		More: []string{"-serial", "unix:" + m.path(name) + ",server=on,wait=off", "-name", name},
	}
	argv := g.Command()
	for j, word := range argv { // each card has an address of its own
		argv[j] = strings.Replace(word, "mac=52:54:00:77:00:02", fmt.Sprintf("mac=52:54:00:77:01:%02d", i+1), 1)
	}
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // Ctrl-C is ours
	return c
}

// initramfs adds the lab's programs and a shell on the second serial port to the image. The kernel unpacks concatenated archives.
func (m *Guests) initramfs(ctx context.Context, i int) (string, error) {
	name := names[i]
	root := m.path(name + ".root")
	if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755); err != nil {
		return "", err
	}
	defer os.RemoveAll(root)
	var hosts strings.Builder
	for j, other := range names {
		fmt.Fprintf(&hosts, "%s %s\n", address(j), other)
	}
	files := map[string]string{
		program: fmt.Sprintf("#!/bin/sh\nhostname %s\ncat /etc/machines >>/etc/hosts\necho ready >\"$1\"\n"+
			"while :; do setsid sh -c 'exec sh -l </dev/ttyS1 >/dev/ttyS1 2>&1'; done\n", name),
		"/etc/machines": hosts.String(),
		"/etc/profile": fmt.Sprintf("export PS1='%s:\\w# ' PATH=/usr/bin:/usr/sbin\necho 'This is the %[1]s, %s; the other machine is the %s. "+
			"ibv_devinfo shows the device; ib_send_bw, rping, kv_server and kv_client use it.'\n", name, address(i), names[1-i]),
	}
	for _, path := range m.Programs {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		files["/usr/bin/"+filepath.Base(path)] = string(text)
	}
	for to, text := range files {
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(to, []byte(text), 0o755); err != nil {
			return "", err
		}
	}
	path := m.path(name + ".initramfs")
	script := `{ cat "$1" && cd "$2" && find . | cpio --quiet -o -H newc -R 0:0; } >"$3"`
	if out, err := exec.CommandContext(ctx, "sh", "-c", script, "sh", filepath.Join(m.Image, "initramfs"), root, path).CombinedOutput(); err != nil {
		return "", fmt.Errorf("the %s's image: %w\n%s", name, err, out)
	}
	return path, nil
}

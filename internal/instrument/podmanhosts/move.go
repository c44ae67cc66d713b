package podmanhosts

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// imageScript writes an archive of programs with the libraries that they load, and of the mount points of a NIC. Otherwise the OCI
// runtime would create these, and podman would archive them in each checkpoint (docs/how-to/move-a-program.md). An image has nothing else:
// the containers of a demonstration or of a measurement need no shell.
const imageScript = `
set -e
files=
for program; do
	path=$(command -v "$program")
	files="$files $path $(LD_TRACE_LOADED_OBJECTS=1 "$path" | sed -n 's|^[^/]*\(/[^ ]*\) (.*|\1|p')"
done
# libvrdma.so needs two more libraries of glibc.
for file in $files; do
	case $file in */libc.so.6) files="$files ${file%libc.so.6}libdl.so.2 ${file%libc.so.6}libpthread.so.0" ;; esac
done
points=$(mktemp -d)
trap 'rm -r "$points"' EXIT
mkdir -p "$points/run/vrdma" "$points/etc"
touch "$points/etc/ld.so.preload"
tar -chf - $files -C "$points" run/vrdma etc/ld.so.preload -C / $(ls -d /etc/libibverbs.d/rxe.driver /usr/lib/*/libibverbs/librxe* /usr/lib64/libibverbs/librxe* 2>/dev/null)
`

// NewImage makes an image on both hosts. It has programs of the hosts, and programs of this machine, which have a path.
func (x *Hosts) NewImage(ctx context.Context, name string, programs ...string) error {
	var names []string
	for _, program := range programs {
		for _, h := range []*Host{x.A, x.B} {
			if !filepath.IsAbs(program) {
				break
			}
			if err := h.install(program); err != nil {
				return err
			}
		}
		names = append(names, filepath.Base(program))
	}
	archive := "/tmp/" + name + ".image"
	if _, err := x.A.Run(ctx, append([]string{"sh", "-c", "exec >" + archive + imageScript, "sh"}, names...)...); err != nil {
		return err
	}
	if err := bring(x.A, x.B, archive); err != nil {
		return err
	}
	// Two imports of one archive would be two images. A checkpoint names its image by its identity.
	saved := "/tmp/" + name + ".saved"
	if _, err := x.A.Run(ctx, x.podman("import", "--change", "ENV=PATH=/usr/bin", archive, name)...); err != nil {
		return err
	}
	if _, err := x.A.Run(ctx, x.podman("save", "-o", saved, name)...); err != nil {
		return err
	}
	if err := bring(x.A, x.B, saved); err != nil {
		return err
	}
	_, err := x.B.Run(ctx, x.podman("load", "-i", saved)...)
	return err
}

// bring copies a file to the same path on another host.
func bring(from, to *Host, file string) error {
	in, err := os.Open(from.path(file))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to.path(file), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}

// A Container is a container that can move.
type Container struct {
	At    *Host
	hosts *Hosts
	name  string
	nic   string // TENANT/NAME; empty: none
}

// Start starts a container of an image on the first host. nic is the NIC that it has, TENANT.NAME; empty: none.
func (x *Hosts) Start(ctx context.Context, name, image, nic string, program ...string) (*Container, error) {
	argv := x.podman("run", "-d", "--name", name, "--network", "none", "--cgroup-parent", x.groups)
	if nic != "" {
		argv = append(argv, "--device", "vrdma.io/nic="+nic)
	}
	c := &Container{At: x.A, hosts: x, name: name, nic: strings.Replace(nic, ".", "/", 1)}
	_, err := x.A.Run(ctx, append(append(argv, image), program...)...)
	return c, err
}

// AwaitListener waits until a program of the container listens with rdma_cm.
func (c *Container) AwaitListener(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, listenTime, fmt.Errorf("not within %v", listenTime))
	defer cancel()
	for {
		s, err := c.At.Status(ctx)
		if err == nil {
			for _, one := range s.Connections {
				if one.State == "LISTEN" && one.NIC == c.nic {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			said, _ := c.Output(context.WithoutCancel(ctx)) // it is for the message only
			return fmt.Errorf("container %s does not listen: %w: %s", c.name, context.Cause(ctx), strings.TrimSpace(said))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// listenTime is how long a program may take to listen.
const listenTime = 30 * time.Second

// A Move says when the steps of a move ended.
type Move struct {
	Began, Checkpointed, Copied, Restored time.Time
	Bytes                                 int64 // of the checkpoint
}

// Move moves the container to another host: podman container checkpoint, a copy of the file, podman container restore.
func (c *Container) Move(ctx context.Context, to *Host) (m Move, err error) {
	from, x := c.At, c.hosts
	file := "/tmp/" + c.name + ".checkpoint"
	m.Began = time.Now()
	if _, err := from.Run(ctx, x.podman("container", "checkpoint", "--compress", "none", "--export", file, c.name)...); err != nil {
		return m, c.reasons(err, from)
	}
	m.Checkpointed = time.Now()
	if err := bring(from, to, file); err != nil {
		return m, err
	}
	m.Copied = time.Now()
	if _, err := to.Run(ctx, x.podman("container", "restore", "--import", file)...); err != nil {
		return m, c.reasons(err, to)
	}
	m.Restored = time.Now()
	c.At = to
	if info, err := os.Stat(to.path(file)); err == nil {
		m.Bytes = info.Size()
	}
	for _, h := range []*Host{from, to} {
		os.Remove(h.path(file)) // all is in memory, and ends with the hosts
	}
	_, err = from.Run(ctx, x.podman("rm", "-f", "-t", "0", c.name)...)
	return m, err
}

// Output returns what the container has printed.
func (c *Container) Output(ctx context.Context) (string, error) {
	return c.At.Run(ctx, c.hosts.podman("logs", c.name)...)
}

// Remove ends the container.
func (c *Container) Remove(ctx context.Context) error {
	_, err := c.At.Run(ctx, c.hosts.podman("rm", "-f", "-t", "0", c.name)...)
	return err
}

// reasons adds the ends of the logs that tell why a step failed.
func (c *Container) reasons(err error, h *Host) error {
	var text strings.Builder
	filepath.WalkDir(h.path("/var/lib/containers"), func(path string, d os.DirEntry, walked error) error {
		if walked != nil {
			return nil
		}
		switch d.Name() {
		case "dump.log", "restore.log", "vrdma.log":
			b, _ := os.ReadFile(path) // it is for the message only
			fmt.Fprintf(&text, "\n%s: %s", d.Name(), b[max(0, len(b)-1500):])
		}
		return nil
	})
	return fmt.Errorf("%w%s\ndaemon of %s: %s", err, text.String(), h.Name, h.log())
}

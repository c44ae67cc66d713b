package testbed

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// An engine starts containers that wait. Programs are started in their namespaces from outside, so that the kernel charges us with
// their processor time.
type engine struct {
	name string
	// there reports whether the engine works here; nil: the program is enough.
	there func(ctx context.Context, l *Lab) bool
	// takes returns an error if the engine cannot use this --rootfs; nil: it takes any.
	takes func(rootfs string) error
	// start starts a container of this name with the mounts that `vrdma nic args` prints.
	start func(ctx context.Context, in *Environments, id, mounts string) error
	// pid prints the process id of the container's init, and remove removes the container.
	pid, remove func(l *Lab, id string) []string
	program     string
	// list has commands that print the names of containers and, with a colon, of images; nil: they cannot be listed.
	list [][]string
}

// engines are the known engines. Without --engine, the first that works and takes the root is used.
var engines = []engine{
	{
		name: "podman", program: "podman",
		start: func(ctx context.Context, in *Environments, id, mounts string) error {
			argv := append([]string{"podman", "run", "--detach", "--rm", "--name", id, "--network", "none"}, strings.Fields(mounts)...)
			_, err := in.Lab.Run(ctx, append(argv, "--rootfs", in.Root(), "sleep", "infinity")...)
			return err
		},
		pid: func(_ *Lab, id string) []string {
			return []string{"podman", "inspect", "--format", "{{.State.Pid}}", id}
		},
		remove: func(_ *Lab, id string) []string { return []string{"podman", "rm", "--force", "--time", "0", id} },
		list:   [][]string{{"podman", "ps", "--all", "--filter", "name=" + namePrefix, "--format", "{{.Names}}"}},
	},
	{
		name: "docker", program: "docker",
		there: func(ctx context.Context, l *Lab) bool { // the client works without a server
			_, err := l.Run(ctx, "docker", "version", "--format", "{{.Server.Version}}")
			return err == nil
		},
		takes: takesDocker, start: startDocker,
		pid: func(_ *Lab, id string) []string {
			return []string{"docker", "inspect", "--format", "{{.State.Pid}}", id}
		},
		remove: func(_ *Lab, id string) []string { return []string{"docker", "rm", "--force", id} },
		list: [][]string{
			{"docker", "ps", "--all", "--filter", "name=" + namePrefix, "--format", "{{.Names}}"},
			{"docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "vrdma-bench"},
		},
	},
	{
		name: "lxc", program: "lxc-execute",
		takes: takesLXC, start: startLXC,
		pid: func(l *Lab, id string) []string { return []string{"lxc-info", "-P", l.Dir, "-n", id, "-p", "-H"} },
		remove: func(l *Lab, id string) []string {
			return []string{"lxc-stop", "-P", l.Dir, "-n", id, "-k"}
		},
	},
}

// NoEngine selects network namespaces in place of containers.
const NoEngine = "none"

// EngineNames returns the values of --engine.
func EngineNames() (names []string) {
	for _, e := range engines {
		names = append(names, e.name)
	}
	return append(names, NoEngine)
}

// chooseEngine returns the engine that starts containers; nil: none works, or the user wants none.
func (in *Environments) chooseEngine(ctx context.Context) (*engine, error) {
	if in.Engine == NoEngine {
		return nil, nil
	}
	for i := range engines {
		e := &engines[i]
		if in.Engine != "" && in.Engine != e.name {
			continue
		}
		if e.takes != nil {
			if err := e.takes(in.Rootfs); err != nil && in.Engine != "" {
				return nil, err
			} else if err != nil {
				continue
			}
		}
		_, err := exec.LookPath(e.program)
		if err == nil && (e.there == nil || e.there(ctx, in.Lab)) {
			return e, nil
		}
		if in.Engine != "" {
			return nil, fmt.Errorf("%s cannot be used here: vrdma doctor says what to do; or --engine %s", in.Engine, NoEngine)
		}
	}
	if in.Engine != "" {
		return nil, fmt.Errorf("%s is no engine that is known: choose among %s", in.Engine, strings.Join(EngineNames(), ", "))
	}
	return nil, nil
}

// startContainer starts a container with a NIC of tenant bench.
func (in *Environments) startContainer(ctx context.Context, e *engine, base *Host, i int, name string) (*Container, error) {
	l := in.Lab
	mounts, err := l.Run(ctx, l.Vrdma, "nic", "args", "bench/"+name, "--socket", base.Socket, "-o", e.name)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("%s%d-%s-%s", namePrefix, os.Getpid(), filepath.Base(base.Socket), name)
	b := &Container{Close: func() { l.Run(context.WithoutCancel(ctx), e.remove(l, id)...) }} // it may be gone already
	if err := e.start(ctx, in, id, mounts); err != nil {
		b.Close() // an interrupted engine may have started it
		return nil, fmt.Errorf("no container: %w; vrdma bench run takes another root with --rootfs, and another engine, or none, with --engine", err)
	}
	out, err := l.Run(ctx, e.pid(l, id)...)
	if err == nil {
		_, err = fmt.Sscan(out, &b.PID)
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	at := fmt.Sprint(b.PID)
	b.Enter = []string{"nsenter", "--target", at, "--net", "--"}
	enter := []string{"nsenter", "--target", at, "--mount", "--net", "--pid", "--ipc", "--uts", "--root", "--wd", "--"}
	b.Host = &Host{Lab: l, Socket: base.Socket + ".nics/bench/" + name + "/nic/vrdma.sock", IP: fmt.Sprintf("10.98.0.%d", i+1), Enter: enter, PID: b.PID, Container: id}
	return b, nil
}

// dockerImport makes an image of this machine's directories and settings. Programs are not in it: /usr is mounted, because Docker
// cannot use a root directory. $0 is the name of the image, $1 a temporary file. Files that find cannot read are not needed.
const dockerImport = `cd / && {
	for d in dev proc sys tmp run root var usr bin sbin lib lib64 etc; do [ ! -e $d ] || printf '%s\0' $d; done
	find etc -mindepth 1 -maxdepth 2 \( -name passwd -o -name group -o -name nsswitch.conf -o -name 'ld.so.c*' -o -path 'etc/libibverbs.d*' -o -path 'etc/openmpi*' \
		-o -path 'etc/ld.so.conf.d*' -o -path 'etc/alternatives/*' \) -print0
} | tar --create --ignore-failed-read --no-recursion --null --files-from=- --file="$1" && docker import - "$0" <"$1"`

// dockerImage makes that image when the first container needs it. RemoveImage removes it.
func (in *Environments) dockerImage(ctx context.Context) (string, error) {
	if in.image != "" {
		return in.image, nil
	}
	name := fmt.Sprintf("vrdma-bench:vrdma-bench-%d", os.Getpid())
	file := filepath.Join(in.Lab.Dir, "docker-image.tar")
	defer os.Remove(file)
	if _, err := in.Lab.Run(ctx, "sh", "-c", dockerImport, name, file); err != nil {
		return "", err
	}
	in.image = name
	return name, nil
}

// RemoveImage removes the image that was made for Docker.
func (in *Environments) RemoveImage() {
	if in.image != "" {
		in.Lab.Run(context.Background(), "docker", "rmi", in.image) // if it fails, the next run sweeps it
		in.image = ""
	}
}

// sweep removes containers and images of runs that were killed. Containers of LXC are in the directories of those runs and cannot be
// found.
func (in *Environments) sweep(ctx context.Context, e *engine) {
	if in.swept || e.list == nil {
		return
	}
	in.swept = true
	for _, argv := range e.list {
		out, err := in.Lab.Run(ctx, argv...)
		if err != nil {
			return // starting a container reports the reason
		}
		for name := range strings.FieldsSeq(out) {
			if _, tag, image := strings.Cut(name, ":"); image && abandoned(tag) {
				in.Lab.Run(ctx, "docker", "rmi", name) // it fails while the image is in use
			} else if abandoned(name) {
				in.Lab.Run(ctx, e.remove(in.Lab, name)...) // another run may sweep at the same time
			}
		}
	}
}

// takesDocker rejects a directory: Docker needs an image.
func takesDocker(rootfs string) error {
	info, err := os.Stat(rootfs)
	if !strings.HasPrefix(rootfs, "/") && (err != nil || !info.IsDir()) {
		return nil
	}
	return fmt.Errorf("docker starts images, and --rootfs %s is a directory: name an image, make one of it (tar -C DIR -c . | docker import - NAME), or choose --engine podman or lxc", rootfs)
}

// takesLXC rejects this machine's root: LXC makes mount points in the root directory of a container.
func takesLXC(rootfs string) error {
	if rootfs == "" {
		return fmt.Errorf("LXC needs a root directory of its own for containers: name one with --rootfs")
	}
	return nil
}

// startDocker starts a container of the image that --rootfs names, or of one with this machine's programs.
func startDocker(ctx context.Context, in *Environments, id, mounts string) error {
	argv := append([]string{"docker", "run", "--detach", "--rm", "--name", id, "--network", "none", "--user", "0"}, strings.Fields(mounts)...)
	image := in.Rootfs
	if image == "" {
		var err error
		if image, err = in.dockerImage(ctx); err != nil {
			return fmt.Errorf("no image: %w", err)
		}
		argv = append(argv, "--volume", "/usr:/usr:ro")
	}
	_, err := in.Lab.Run(ctx, append(argv, image, "sleep", "infinity")...)
	return err
}

// startLXC starts a container with the root directory that --rootfs names.
func startLXC(ctx context.Context, in *Environments, id, mounts string) error {
	file := filepath.Join(in.Lab.Dir, id+".conf")
	text := fmt.Sprintf("lxc.rootfs.path = dir:%s\nlxc.net.0.type = empty\nlxc.uts.name = %s\nlxc.mount.auto = proc:mixed sys:ro\n%s", in.Rootfs, id, mounts)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := in.Lab.Run(ctx, "lxc-execute", "-P", in.Lab.Dir, "-n", id, "-f", file, "--daemon", "--", "sleep", "infinity")
	return err
}

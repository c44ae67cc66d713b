package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/criu"
	"vrdma.dev/vrdma/internal/platform/launch"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A liveMove moves the podman container that has a NIC, while it runs. The steps are podman's; the plugin of CRIU does vrdma's part.
//
//	here: podman container checkpoint ─▶ file ─▶ shell on the other host: podman container restore
//	      │ fails: the container continues       │ fails, and the NIC is here: podman container restore here
type liveMove struct {
	place launch.Place
	nic   tenant.Key
	host  string   // the other host
	shell []string // a command line that runs a command on the other host
	dir   string   // for the checkpoint
	log   io.Writer
}

// A podmanContainer is a line of podman ps.
type podmanContainer struct {
	ID    string
	Names []string
	Pid   int
}

func (c podmanContainer) name() string {
	if len(c.Names) > 0 {
		return c.Names[0]
	}
	return c.ID
}

// restoreScript restores the checkpoint that comes on standard input.
const restoreScript = `f=$(mktemp /var/tmp/vrdma-move.XXXXXX) && cat >"$f" && podman container restore -i "$f"; s=$?; rm -f "$f"; exit $s`

// run moves the container.
func (m *liveMove) run() (said string, err error) {
	c, err := m.container()
	if err != nil {
		return "", err
	}
	if out, err := m.remote(nil, "podman --version >/dev/null"); err != nil {
		return "", fmt.Errorf("nothing was moved: host %s has no podman, or %s does not reach it: %w: %s", m.host, strings.Join(m.shell, " "), err, out)
	}
	file, err := os.CreateTemp(m.dir, "vrdma-move-*.tar")
	if err != nil {
		return "", err
	}
	file.Close()
	began := time.Now()
	if out, err := podman("container", "checkpoint", "-e", file.Name(), c.ID); err != nil {
		os.Remove(file.Name()) // it is of no use
		return "", fmt.Errorf("container %s continues on this host: podman container checkpoint: %w: %s", c.name(), err, out)
	}
	fmt.Fprintf(m.log, "container %s stands still; its checkpoint goes to %s\n", c.name(), m.host)
	if err := m.send(file.Name()); err != nil {
		return "", m.back(c, file.Name(), err)
	}
	took := time.Since(began)
	os.Remove(file.Name()) // the other host does not need it
	if out, err := podman("rm", c.ID); err != nil {
		fmt.Fprintf(m.log, "what is left of container %s on this host is not removed: %v: %s\n", c.name(), err, out)
	}
	return fmt.Sprintf("NIC %s and container %s are on host %s now, %v after the move began", m.nic.Path(), c.name(), m.host, took.Round(time.Millisecond)), nil
}

// container finds the container of all programs that have the NIC.
func (m *liveMove) container() (c podmanContainer, err error) {
	s, err := protocol.QueryStatus(m.place.Socket)
	if err != nil {
		return c, unanswered(m.place, err)
	}
	var pids []int
	for _, p := range s.Programs {
		if p.NIC == m.nic.Path() {
			pids = append(pids, p.Pid)
		}
	}
	if len(pids) == 0 {
		return c, fmt.Errorf("no program has NIC %s open on this host: start its container on the other host", m.nic.Path())
	}
	out, err := podman("ps", "--no-trunc", "--format", "json")
	if err != nil {
		return c, fmt.Errorf("podman ps: %w: %s", err, out)
	}
	var all []podmanContainer
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return c, fmt.Errorf("podman ps: %w", err)
	}
	return ownerOf(pids, all, criu.Descendants)
}

// ownerOf returns the container that has all processes.
func ownerOf(pids []int, all []podmanContainer, family func(pid int) []int) (c podmanContainer, err error) {
	for _, c := range all {
		if of := family(c.Pid); c.Pid > 0 && !slices.ContainsFunc(pids, func(pid int) bool { return !slices.Contains(of, pid) }) {
			return c, nil
		}
	}
	return c, fmt.Errorf("the programs of the NIC (pids %v) are not in one container of podman: vrdma nic leave and arrive move others", pids)
}

// podman runs podman and returns its standard output, or all output after an error.
func podman(args ...string) (string, error) {
	cmd := exec.Command("podman", args...)
	var out, all bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &all), &all
	if err := cmd.Run(); err != nil {
		return strings.TrimSpace(all.String()), err
	}
	return out.String(), nil
}

// remote runs a shell command on the other host.
func (m *liveMove) remote(in io.Reader, command string) (string, error) {
	cmd := exec.Command(m.shell[0], append(slices.Clone(m.shell[1:]), command)...)
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// send restores the checkpoint on the other host.
func (m *liveMove) send(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if out, err := m.remote(file, restoreScript); err != nil {
		return fmt.Errorf("podman container restore on %s: %w: %s", m.host, err, out)
	}
	return nil
}

// at is the host that has the NIC; "": it is not known.
func (m *liveMove) at() string {
	reply, err := control.Get(m.place.Socket, control.Selection{Kind: m.nic.Kind, Tenant: m.nic.Tenant, Name: m.nic.Name})
	if err != nil || len(reply.Items) != 1 || reply.Items[0].Status == nil {
		return ""
	}
	return reply.Items[0].Status.Host
}

// back restores the container on this host after an error of the other one, unless that has the NIC by now.
func (m *liveMove) back(c podmanContainer, path string, cause error) error {
	if at := m.at(); at == m.host || at == "" {
		return fmt.Errorf("%w; the NIC is on host %q: look there whether container %s runs; the checkpoint is in %s", cause, at, c.name(), path)
	}
	if out, err := podman("rm", c.ID); err != nil {
		return errors.Join(cause, fmt.Errorf("podman rm: %w: %s; the checkpoint is in %s: podman container restore -i %[3]s", err, out, path))
	}
	if out, err := podman("container", "restore", "-i", path); err != nil {
		return errors.Join(cause, fmt.Errorf("podman container restore on this host: %w: %s; the checkpoint is in %s", err, out, path))
	}
	os.Remove(path) // the container does not need it
	return fmt.Errorf("container %s continues on this host: %w", c.name(), cause)
}

// shellTo is the command line that runs commands on a host: that of --rsh or VRDMA_RSH with the host's name, or ssh.
func shellTo(rsh, host string) []string {
	for _, s := range []string{rsh, os.Getenv("VRDMA_RSH")} {
		if words := strings.Fields(s); len(words) > 0 {
			return append(words, host)
		}
	}
	return []string{"ssh", "-o", "BatchMode=yes", host}
}

// moveLive moves a NIC with its running container.
func moveLive(place launch.Place, k tenant.Key, host, rsh, login string, log io.Writer) (said string, err error) {
	item, n, err := declaredNIC(place, k)
	if err != nil {
		return "", err
	}
	if err := movable(place, n); err != nil {
		return "", err
	}
	if err := knownHost(place, host); err != nil {
		return "", err
	}
	switch {
	case n.Spec.Host != "":
		return "", fmt.Errorf("NIC %s has spec.host %s: a NIC that moves with its programs has none (host: anywhere)", k.Path(), n.Spec.Host)
	case item.Status != nil && item.Status.Host == host:
		return fmt.Sprintf("NIC %s is on host %s already", k.Path(), host), nil
	}
	if login == "" {
		login = host
	}
	if _, err := exec.LookPath("podman"); err != nil {
		return "", lacks("podman not found: --live moves containers of podman; vrdma nic leave and arrive move other programs")
	}
	m := &liveMove{place: place, nic: k, host: host, shell: shellTo(rsh, login), dir: "/var/tmp", log: log}
	return m.run()
}

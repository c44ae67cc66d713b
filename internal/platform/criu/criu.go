package criu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// Leave makes the NICs leave that a process or its descendants use, and writes to out which. s is the daemon's status.
func Leave(out io.Writer, place launch.Place, s *protocol.Status, pid int) error {
	moves, err := readMoves(filepath.Join(images, list))
	if err != nil {
		return err
	}
	family := Descendants(pid)
	for _, p := range s.Programs {
		there := slices.ContainsFunc(moves, func(m move) bool { return m.nic == p.NIC })
		if there || !slices.Contains(family, p.Pid) || !strings.Contains(p.NIC, "/") {
			continue
		}
		m := move{nic: p.NIC, state: "vrdma-" + strings.ReplaceAll(p.NIC, "/", ".") + ".state"}
		for _, o := range s.Programs {
			if o.NIC == p.NIC {
				m.pids = append(m.pids, o.Pid)
			}
		}
		answer, err := protocol.MigrateNIC(place.Socket, protocol.MoveLeave, m.nic, nil, 0)
		if err != nil {
			return err
		}
		err = os.WriteFile(filepath.Join(images, m.state), answer.State, 0o600)
		if moves = append(moves, m); err == nil {
			err = writeMoves(images, moves)
		}
		if err != nil {
			_, back := protocol.MigrateNIC(place.Socket, protocol.MoveStay, m.nic, nil, 0)
			return errors.Join(err, back)
		}
		fmt.Fprintf(out, "NIC %s: %d programs with %d queue pairs have let go\n", m.nic, answer.Programs, answer.QPs)
	}
	return nil
}

// Descendants returns a process, those that it has started, and so on.
func Descendants(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is fine
	for _, path := range tasks {
		text, _ := os.ReadFile(path) // the thread may have ended
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, Descendants(child)...)
			}
		}
	}
	return all
}

// Settle waits until the process criu has ended. A NIC stays if its programs still live then: CRIU has only copied them, or the
// dump has failed.
func Settle(out io.Writer, place launch.Place, criu int) error {
	if fd, err := unix.PidfdOpen(criu, 0); err == nil {
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err != unix.EINTR {
				break
			}
		}
		unix.Close(fd)
	}
	moves, err := readMoves(openList)
	if err != nil {
		return err
	}
	var errs []error
	for _, m := range moves {
		if !slices.ContainsFunc(m.pids, lives) {
			continue
		}
		if _, err := protocol.MigrateNIC(place.Socket, protocol.MoveStay, m.nic, nil, 0); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(out, "NIC %s stays\n", m.nic)
	}
	return errors.Join(errs...)
}

// lives reports whether a process has not ended.
func lives(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, found := strings.Cut(string(text), ") ")
	return found && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// Arrive makes the NICs of the images arrive. It returns when their programs have come back.
func Arrive(out io.Writer, place launch.Place) error {
	moves, err := readMoves(filepath.Join(images, list))
	if err != nil {
		return err
	}
	results := make(chan error)
	for _, m := range moves {
		go func() {
			sealed, err := os.ReadFile(filepath.Join(images, m.state))
			if err == nil {
				_, err = protocol.MigrateNIC(place.Socket, protocol.MoveArrive, m.nic, sealed, 0)
			}
			if err == nil {
				_, err = fmt.Fprintf(out, "NIC %s has arrived\n", m.nic)
			}
			results <- err
		}()
	}
	var errs []error
	for range moves {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

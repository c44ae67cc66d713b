package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/platform/launch"
)

// The plugin of CRIU opens the image directory for the commands, and the list of NICs in it, which a later dump may remove.
const (
	criuImages = "/proc/self/fd/3"
	criuList   = "/proc/self/fd/4"
)

// A criuMove is a line of criuMoves, in the image directory: a NIC that has left, the file with its state, and the programs that had it.
type criuMove struct {
	nic, state string
	pids       []int
}

const criuMoves = "vrdma.moves"

func criuCommand(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:    "criu",
		Short:  "what CRIU's plugin runs when it moves a container",
		Hidden: true,
		Args:   cobra.NoArgs,
	}
	add := func(use, short string, run func(place launch.Place, number int) error) {
		c.AddCommand(&cobra.Command{
			Use: use + " NUMBER", Short: short, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				number, err := strconv.Atoi(args[0])
				if err != nil {
					return usage("%s: want a number", args[0])
				}
				place, err := o.placeOfNIC() // CRIU has no environment
				if err != nil {
					return err
				}
				return run(place, number)
			},
		})
	}
	add("leave", "make the NICs of a process leave this host", criuLeave)
	add("settle", "make NICs stay whose programs live when CRIU has ended", criuSettle)
	add("arrive", "make the NICs of the images arrive", criuArrive)
	return c
}

// criuLeave makes the NICs leave that a process or its descendants use.
func criuLeave(place launch.Place, pid int) error {
	s, err := protocol.QueryStatus(place.Socket)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		fmt.Printf("no daemon serves %s: the processes have no NIC\n", place.Socket)
		return nil
	}
	if err != nil {
		return unanswered(place, err)
	}
	moves, err := readMoves(filepath.Join(criuImages, criuMoves))
	if err != nil {
		return err
	}
	family := descendants(pid)
	for _, p := range s.Programs {
		there := slices.ContainsFunc(moves, func(m criuMove) bool { return m.nic == p.NIC })
		if there || !slices.Contains(family, p.Pid) || !strings.Contains(p.NIC, "/") {
			continue
		}
		m := criuMove{nic: p.NIC, state: "vrdma-" + strings.ReplaceAll(p.NIC, "/", ".") + ".state"}
		for _, o := range s.Programs {
			if o.NIC == p.NIC {
				m.pids = append(m.pids, o.Pid)
			}
		}
		answer, err := protocol.MigrateNIC(place.Socket, protocol.MoveLeave, m.nic, nil, 0)
		if err != nil {
			return err
		}
		err = os.WriteFile(filepath.Join(criuImages, m.state), answer.State, 0o600)
		if moves = append(moves, m); err == nil {
			err = writeMoves(criuImages, moves)
		}
		if err != nil {
			_, back := protocol.MigrateNIC(place.Socket, protocol.MoveStay, m.nic, nil, 0)
			return errors.Join(err, back)
		}
		fmt.Printf("NIC %s: %d programs with %d queue pairs have let go\n", m.nic, answer.Programs, answer.QPs)
	}
	return nil
}

// descendants are a process and those that it has started, and so on.
func descendants(pid int) []int {
	all := []int{pid}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is fine
	for _, path := range tasks {
		text, _ := os.ReadFile(path) // the thread may have ended
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, descendants(child)...)
			}
		}
	}
	return all
}

// criuSettle waits until CRIU has ended. If programs of a NIC still live, they were only copied, or the dump has failed: the NIC stays.
func criuSettle(place launch.Place, criu int) error {
	if fd, err := unix.PidfdOpen(criu, 0); err == nil {
		for {
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if err != unix.EINTR {
				break
			}
		}
		unix.Close(fd)
	}
	moves, err := readMoves(criuList)
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
		fmt.Printf("NIC %s stays\n", m.nic)
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

// criuArrive makes the NICs of the images arrive, when their programs come.
func criuArrive(place launch.Place, _ int) error {
	moves, err := readMoves(filepath.Join(criuImages, criuMoves))
	if err != nil {
		return err
	}
	results := make(chan error)
	for _, m := range moves {
		go func() {
			sealed, err := os.ReadFile(filepath.Join(criuImages, m.state))
			if err == nil {
				_, err = protocol.MigrateNIC(place.Socket, protocol.MoveArrive, m.nic, sealed, 0)
			}
			if err == nil {
				fmt.Printf("NIC %s has arrived\n", m.nic)
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

// readMoves reads a list of NICs.
func readMoves(path string) (moves []criuMove, err error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || strings.Contains(words[1], "/") {
			return nil, fmt.Errorf("%s: %.100q names no NIC and file", f.Name(), lines.Text())
		}
		m := criuMove{nic: words[0], state: words[1]}
		for _, w := range words[2:] {
			pid, err := strconv.Atoi(w)
			if err != nil {
				return nil, fmt.Errorf("%s: %.100q is no process", f.Name(), w)
			}
			m.pids = append(m.pids, pid)
		}
		moves = append(moves, m)
	}
	return moves, nil
}

// writeMoves writes it.
func writeMoves(dir string, moves []criuMove) error {
	var text strings.Builder
	for _, m := range moves {
		fmt.Fprint(&text, m.nic, " ", m.state)
		for _, pid := range m.pids {
			fmt.Fprint(&text, " ", pid)
		}
		text.WriteByte('\n')
	}
	return os.WriteFile(filepath.Join(dir, criuMoves), []byte(text.String()), 0o600)
}

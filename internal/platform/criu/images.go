package criu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CRIU's plugin opens the image directory for the commands, and the list of NICs in it, which a later dump may remove.
const (
	images   = "/proc/self/fd/3"
	openList = "/proc/self/fd/4"
)

// A move is a line of the list: a NIC that has left, the file with its state, and the programs that had it.
type move struct {
	nic, state string
	pids       []int
}

// list is the file in the image directory that names the NICs.
const list = "vrdma.moves"

// readMoves reads a list of NICs.
func readMoves(path string) (moves []move, err error) {
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
		m := move{nic: words[0], state: words[1]}
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

// writeMoves writes the list.
func writeMoves(dir string, moves []move) error {
	var text strings.Builder
	for _, m := range moves {
		fmt.Fprint(&text, m.nic, " ", m.state)
		for _, pid := range m.pids {
			fmt.Fprint(&text, " ", pid)
		}
		text.WriteByte('\n')
	}
	return os.WriteFile(filepath.Join(dir, list), []byte(text.String()), 0o600)
}

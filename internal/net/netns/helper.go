package netns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Command is the name of vrdma's helper command: vrdma COMMAND KINDS, with descriptor 5 for the answer.
const Command = "netns-sockets"

const (
	helperTime = 10 * time.Second
	// most is the maximum number of descriptors in one message, below the kernel's limit of 253.
	most = 200
)

// letters encode the kinds in the helper's argument.
var letters = map[byte]Kind{'4': UDP4, '6': UDP6, 'n': Netlink}

func spell(kinds []Kind) string {
	var b strings.Builder
	for _, k := range kinds {
		for l, o := range letters {
			if o == k {
				b.WriteByte(l)
			}
		}
	}
	return b.String()
}

// openBeside lets a helper create the sockets in the user namespace. why is the reason why this process cannot.
func (s *Space) openBeside(kinds []Kind, why error) ([]int, error) {
	if os.Geteuid() == 0 {
		return nil, why // if root lacks the right here, the helper lacks it, too
	}
	if len(kinds) > most {
		return nil, fmt.Errorf("%d sockets are more than a helper makes: %d", len(kinds), most)
	}
	fds, err := s.help(spell(kinds), len(kinds))
	if err != nil {
		return nil, fmt.Errorf("the container's own network is not available to this daemon: %w", err)
	}
	return fds, nil
}

// help runs a helper that creates count descriptors.
func (s *Space) help(what string, count int) ([]int, error) {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return nil, fmt.Errorf("it takes nsenter (package util-linux): %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	fd, err := unix.IoctlRetInt(int(s.file.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		return nil, fmt.Errorf("the user namespace that it belongs to is not ours to enter: %w", err)
	}
	user := os.NewFile(uintptr(fd), "user")
	defer user.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "answer"), os.NewFile(uintptr(pair[1]), "answer")
	defer ours.Close()
	ctx, cancel := context.WithTimeout(context.Background(), helperTime)
	defer cancel()
	c := exec.CommandContext(ctx, nsenter, "--user=/proc/self/fd/3", "--net=/proc/self/fd/4", "--preserve-credentials", "--", self, Command, what)
	c.ExtraFiles = []*os.File{user, s.file, theirs}
	c.Env = []string{}
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("the helper that enters it failed: %w: %s", err, strings.TrimSpace(string(out)))
	}
	fds, err := receive(int(ours.Fd()))
	if err == nil && len(fds) != count {
		closeAll(fds)
		err = fmt.Errorf("the helper made %d descriptors of %d", len(fds), count)
	}
	return fds, err
}

// receive receives the descriptors of one message.
func receive(from int) ([]int, error) {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4*most))
	_, n, flags, _, err := unix.Recvmsg(from, b[:], oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
	if err != nil {
		return nil, err
	}
	list, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range list {
		some, err := unix.ParseUnixRights(&list[i])
		if err == nil {
			fds = append(fds, some...)
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		closeAll(fds)
		return nil, errors.New("no descriptors are left: raise the limit of open files (ulimit -n)")
	}
	return fds, nil
}

// parse is the inverse of spell.
func parse(what string) (kinds []Kind, err error) {
	for i := range len(what) {
		k, ok := letters[what[i]]
		if !ok || len(kinds) == most {
			return nil, errors.New("the daemon starts this helper, with what it needs: " + strconv.Quote(what))
		}
		kinds = append(kinds, k)
	}
	return kinds, nil
}

// Serve is the helper: it creates sockets, or an interface, in its namespaces and sends the descriptors to its parent.
func Serve(what string) error {
	var fds []int
	var err error
	if strings.HasPrefix(what, tapHelp) {
		fds, err = serveTap(what)
	} else {
		var kinds []Kind
		if kinds, err = parse(what); err == nil {
			fds, err = makeSockets(kinds)
		}
	}
	if err != nil {
		return err
	}
	defer closeAll(fds)
	return unix.Sendmsg(5, []byte{0}, unix.UnixRights(fds...), nil, 0)
}

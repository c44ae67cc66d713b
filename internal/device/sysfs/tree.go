package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/abi/abitext"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/net/roce"
)

const (
	// umadABI is what the kernel's module says.
	umadABI = 5

	// Counters are read this often while they change, and ever more rarely while
	// they do not: reading them visits the engine's loop.
	counterPeriod = 100 * time.Millisecond
	counterRest   = time.Second
	// counterWidth is room for the largest counter and a newline: files are
	// cut to what they hold.
	counterWidth = 21
)

// A Tree is the device tree on disk. Lock order: life before mu.
type Tree struct {
	root string
	nic  *nic.NIC
	mode fs.FileMode
	read func() []Counter
	wake chan struct{}

	// life is held while the tree is written, begins or ends to follow the counters, or goes.
	life     sync.Mutex
	rests    bool          // while nobody uses it; see Later
	sketched bool          // guarded by life; see Sketch
	written  bool          // guarded by life
	gone     bool          // guarded by life
	users    int           // guarded by life
	done     chan struct{} // guarded by life; nil: nothing follows the counters
	ended    chan struct{}

	mu    sync.Mutex
	files map[string]*os.File // guarded by mu; by dir/name
	last  map[string]uint64   // guarded by mu
}

// New writes the tree of n below root, and follows the counters, which read reads.
func New(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) (*Tree, error) {
	t := newTree(root, n, dirMode, read)
	t.life.Lock()
	defer t.life.Unlock()
	if err := t.write(); err != nil {
		return nil, err
	}
	if err := t.follow(); err != nil {
		os.RemoveAll(root)
		return nil, err
	}
	return t, nil
}

func newTree(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) *Tree {
	return &Tree{
		root: root, nic: n, mode: dirMode, read: read, wake: make(chan struct{}, 1), files: make(map[string]*os.File), last: make(map[string]uint64),
	}
}

// write writes all but the counters. life is held.
func (t *Tree) write() error {
	if t.written || t.gone {
		return nil
	}
	if err := t.sketch(); err != nil {
		return err
	}
	w := t.writer()
	w.port(t.nic)
	if t.rests {
		for _, c := range Counters(nic.Counters{}, roce.Counters{}) {
			w.file(filepath.Join(t.port(), c.Dir, c.Name), "0")
		}
	}
	if err := t.finish(w); err != nil {
		return err
	}
	os.Remove(filepath.Join(t.root, Unfinished)) // if it stays somebody asks in vain
	t.written = true
	return nil
}

// sketch writes the part of the tree that a program reads before it asks the daemon for something.
// life is held.
func (t *Tree) sketch() error {
	if t.sketched || t.gone {
		return nil
	}
	if err := os.RemoveAll(t.root); err != nil {
		return fmt.Errorf("clearing the old device tree: %w", err)
	}
	w := t.writer()
	if t.rests {
		w.file(Unfinished, "")
	}
	w.verbsClass(t.nic.Name)
	w.device(t.nic)
	t.sketched = true
	return t.finish(w)
}

func (t *Tree) writer() *writer {
	w := &writer{root: t.root, dirMode: t.mode | 0o700, fileMode: fileMode(t.mode), made: make(map[string]bool)}
	if t.rests {
		w.same = make(map[string]string)
	}
	return w
}

// finish says whether everything was written; if not, nothing is.
func (t *Tree) finish(w *writer) error {
	if w.err == nil {
		return nil
	}
	os.RemoveAll(t.root)
	t.sketched = false
	return fmt.Errorf("writing the device tree: %w", w.err)
}

// port returns where the port is.
func (t *Tree) port() string { return filepath.Join("class/infiniband", t.nic.Name, "ports/1") }

// follow opens the counters, and brings them up to date from now on. life is held.
func (t *Tree) follow() error {
	if t.done != nil || t.gone {
		return nil
	}
	if err := t.openCounters(t.port(), t.writer()); err != nil {
		t.closeFiles()
		return fmt.Errorf("writing the device tree: %w", err)
	}
	t.done, t.ended = make(chan struct{}), make(chan struct{})
	go t.refresh(t.done, t.ended)
	return nil
}

// unfollow undoes follow. life is held.
func (t *Tree) unfollow() {
	if t.done == nil {
		return
	}
	close(t.done)
	<-t.ended
	t.done = nil
	t.closeFiles()
}

// fileMode lets whoever may enter the directory read.
func fileMode(dir fs.FileMode) fs.FileMode {
	return 0o600 | dir&0o111<<2
}

// A writer makes files and remembers the first error.
type writer struct {
	root              string
	dirMode, fileMode fs.FileMode
	made              map[string]bool   // directories that have been made
	same              map[string]string // files by what is in them, to be linked; nil: each is its own
	err               error
}

// dir makes a directory, whatever the umask.
func (w *writer) dir(name string) {
	if w.err != nil || w.made[name] {
		return
	}
	if name == "." {
		w.err = os.MkdirAll(w.root, w.dirMode)
	} else {
		w.dir(filepath.Dir(name))
	}
	path := filepath.Join(w.root, name)
	if w.err == nil {
		if err := os.Mkdir(path, w.dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
			w.err = err
		}
	}
	if w.err == nil {
		w.err = os.Chmod(path, w.dirMode)
	}
	w.made[name] = true
}

// file writes one attribute, newline included.
func (w *writer) file(name string, format string, args ...any) {
	w.dir(filepath.Dir(name))
	if w.err != nil {
		return
	}
	path, text := filepath.Join(w.root, name), fmt.Sprintf(format+"\n", args...)
	if first := w.same[text]; first != "" {
		w.err = os.Link(first, path)
		return
	}
	if w.err = errors.Join(os.WriteFile(path, []byte(text), w.fileMode), os.Chmod(path, w.fileMode)); w.same != nil {
		w.same[text] = path
	}
}

func (w *writer) link(target, name string) {
	w.dir(filepath.Dir(name))
	if w.err == nil {
		w.err = os.Symlink(target, filepath.Join(w.root, name))
	}
}

// verbsClass is what libibverbs and librdmacm scan.
func (w *writer) verbsClass(device string) {
	w.file("class/infiniband_verbs/abi_version", "%d", abi.VerbsABIVersion)
	const uverbs = "class/infiniband_verbs/uverbs0/"
	w.file(uverbs+"ibdev", "%s", device)
	w.file(uverbs+"dev", "%d:%d", abi.UverbsMajor, abi.UverbsMinor)
	w.file(uverbs+"abi_version", "%d", abi.RxeABIVersion)
	w.link("../../../"+parentDevice, uverbs+"device")
	w.file("class/infiniband_mad/abi_version", "%d", umadABI)
	w.file("class/misc/rdma_cm/abi_version", "%d", abi.CMABIVersion)
	w.file("class/misc/rdma_cm/dev", "%d:%d", abi.CMMajor, abi.CMMinor)
}

func (w *writer) device(n *nic.NIC) {
	d := filepath.Join("class/infiniband", n.Name) + "/"
	guid := abitext.SysfsGUID(n.NodeGUID)
	w.file(d+"node_type", "1: CA")
	w.file(d+"node_guid", "%s", guid)
	w.file(d+"sys_image_guid", "%s", guid)
	w.file(d+"node_desc", "rxe")
	w.file(d+"fw_ver", "")
	gids := n.Face().GIDs
	if len(gids) > 0 && gids[0].NetDev != "" {
		w.file(d+"parent", "%s", gids[0].NetDev)
	}
	w.dir(parentDevice + "/net")
	for _, g := range gids {
		if g.NetDev != "" {
			w.dir(parentDevice + "/net/" + filepath.Base(g.NetDev))
		}
	}
	w.dir(parentDevice + "/infiniband/" + n.Name)
	w.dir(parentDevice + "/infiniband_verbs/uverbs0")
	w.dir("class/" + parentClass)
	w.link("../../../../class/"+parentClass, parentDevice+"/subsystem")
	w.link("../../../"+parentDevice, d+"device")
}

// The parent device is virtual, and says so: it is below devices/virtual, and its subsystem is not pci. Programs
// resolve the link device in the belief that it leads to a PCI device, and pyverbs lists its interfaces.
// NCCL merges the ports and virtual functions of a PCI device: it sets the last, the third and the fourth
// character from the end of the path to 0, then looks for the subsystem there. It finds this one, because these are 0.
const (
	parentClass  = "vrdma"
	parentDevice = "devices/virtual/" + parentClass + "/vrdma.0000"
)

func (w *writer) port(n *nic.NIC) {
	p := filepath.Join("class/infiniband", n.Name, "ports/1") + "/"
	w.file(p+"state", "4: ACTIVE")
	w.file(p+"phys_state", "5: LinkUp")
	w.file(p+"rate", "%s", rateText(nic.PortWidth, nic.PortSpeed))
	w.file(p+"link_layer", "Ethernet")
	w.file(p+"lid", "0x0")
	w.file(p+"lid_mask_count", "0")
	w.file(p+"sm_lid", "0x0")
	w.file(p+"sm_sl", "0")
	w.file(p+"cap_mask", "0x%08x", abi.PortCapCM)
	w.file(p+"has_smi", "0")
	for i := range nic.PKeys {
		w.file(fmt.Sprintf("%spkeys/%d", p, i), "0xffff")
	}
	// The kernel shows the empty rows too. Reading the type of one gives EINVAL
	// there, which libibverbs knows; a plain file cannot do that, so it has one.
	f := n.Face()
	for row := range f.TableLen() {
		g, full := f.Entry(row)
		w.file(fmt.Sprintf("%sgids/%d", p, row), "%s", abitext.SysfsGID(g.GID))
		w.file(fmt.Sprintf("%sgid_attrs/types/%d", p, row), nic.GIDType)
		if full && g.NetDev != "" { // libibverbs refuses a table of GIDs with an interface that is not there
			w.file(fmt.Sprintf("%sgid_attrs/ndevs/%d", p, row), "%s", g.NetDev)
		}
	}
	w.file(p+HWCounters+"/lifespan", "10")
}

// rateText prints width and speed as the kernel's rate_show.
func rateText(width, speed int) string {
	lanes := map[int]int{abi.Width1X: 1, abi.Width4X: 4}[width]
	switch speed {
	case abi.SpeedEDR:
		return fmt.Sprintf("%d Gb/sec (%dX EDR)", 25*lanes, lanes)
	default:
		return fmt.Sprintf("%g Gb/sec (%dX SDR)", 2.5*float64(lanes), lanes)
	}
}

// openCounters makes the counter files, all zero or as they were left, and keeps them open.
func (t *Tree) openCounters(port string, w *writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range Counters(nic.Counters{}, roce.Counters{}) {
		key := filepath.Join(c.Dir, c.Name)
		w.dir(filepath.Join(port, c.Dir))
		if w.err != nil {
			return w.err
		}
		// Not the file that is there: it may be one for all counters, see Later.
		path, fresh := filepath.Join(t.root, port, key), filepath.Join(t.root, "fresh")
		f, err := os.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_TRUNC, w.fileMode)
		if err != nil {
			return err
		}
		t.files[key] = f
		if err := errors.Join(f.Chmod(w.fileMode), put(f, t.last[key]), os.Rename(fresh, path)); err != nil {
			return err
		}
	}
	return nil
}

// put rewrites a counter. A reader that comes in between sees the old number or the
// new one: counters only grow, so one write replaces all of it.
func put(f *os.File, v uint64) error {
	b := make([]byte, 0, counterWidth)
	b = append(strconv.AppendUint(b, v, 10), '\n')
	_, err := f.WriteAt(b, 0)
	return err
}

// Sync brings the counter files up to date before it returns, and reports whether
// any changed.
func (t *Tree) Sync() (changed bool) {
	counters := t.read()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range counters {
		key := filepath.Join(c.Dir, c.Name)
		if f := t.files[key]; f != nil && c.Value > t.last[key] {
			if put(f, c.Value) == nil {
				t.last[key], changed = c.Value, true
			}
		}
	}
	return changed
}

// Poke asks for fresh counters soon.
func (t *Tree) Poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// refresh follows the counters.
func (t *Tree) refresh(done, ended chan struct{}) {
	defer close(ended)
	period := counterPeriod
	for {
		select {
		case <-done:
			return
		case <-time.After(period):
		case <-t.wake:
			time.Sleep(counterPeriod / 2) // sessions often end together
		}
		if t.Sync() {
			period = counterPeriod
		} else {
			period = min(2*period, counterRest)
		}
	}
}

// Remove deletes the tree; once it is gone, again does nothing.
func (t *Tree) Remove() error {
	t.Leave()
	err := os.RemoveAll(t.root)
	// The directory around it may hold the shared object, which is not ours.
	if rerr := os.Remove(filepath.Dir(t.root)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) && !errors.Is(rerr, syscall.ENOTEMPTY) {
		err = errors.Join(err, rerr)
	}
	return err
}

// Leave has nothing written any more, and leaves the files to whoever owns the directory.
func (t *Tree) Leave() {
	t.life.Lock()
	defer t.life.Unlock()
	t.gone = true
	t.unfollow()
}

func (t *Tree) closeFiles() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.files {
		f.Close()
	}
	clear(t.files)
}

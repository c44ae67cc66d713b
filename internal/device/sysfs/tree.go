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
	// umadABI is the version of the kernel's umad module.
	umadABI = 5

	// Counters are read at counterPeriod while they change, and up to counterRest otherwise: reading them runs on the engine's loop.
	counterPeriod = 100 * time.Millisecond
	counterRest   = time.Second
	// counterWidth is the length of the largest counter and a newline; files are truncated to their content.
	counterWidth = 21
)

// A Tree is the device tree on disk. Lock order: life before mu.
type Tree struct {
	root string
	nic  *nic.NIC
	mode fs.FileMode
	read func() []Counter
	wake chan struct{}

	// life is held while the tree is written or removed, and while updating of the counters starts or stops.
	life     sync.Mutex
	rests    bool          // counters are updated only while in use; see Later
	sketched bool          // guarded by life; see Sketch
	adopts   bool          // guarded by life: another daemon may have written the tree
	written  bool          // guarded by life
	gone     bool          // guarded by life
	users    int           // guarded by life
	done     chan struct{} // guarded by life; nil: the counters are not updated
	ended    chan struct{}

	mu    sync.Mutex
	files map[string]*os.File // guarded by mu; by dir/name
	last  map[string]uint64   // guarded by mu
}

// New writes the tree of n below root, and updates the counters, which read returns.
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

// Continue is New for a tree that another daemon has left. Programs see no moment without it: only the counters are replaced.
// With an error the tree is not complete.
func Continue(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) (*Tree, error) {
	t := newTree(root, n, dirMode, read)
	t.Adopt()
	t.life.Lock()
	defer t.life.Unlock()
	for _, c := range read() {
		t.last[filepath.Join(c.Dir, c.Name)] = c.Value
	}
	if err := t.write(); err != nil {
		return t, err
	}
	return t, t.follow()
}

// Adopt makes a tree on disk, if there is one, the tree of t. The other daemon may also write it later, until it has handed over. A newer
// daemon does not add attributes to it.
func (t *Tree) Adopt() {
	t.life.Lock()
	defer t.life.Unlock()
	t.adopts = true
	t.adopt()
}

// adopt is Adopt for what is on disk now. The caller holds life.
func (t *Tree) adopt() {
	if _, err := os.Stat(filepath.Join(t.root, "class/infiniband_verbs")); err != nil {
		return
	}
	_, err := os.Stat(filepath.Join(t.root, Unfinished))
	t.sketched, t.written = true, errors.Is(err, fs.ErrNotExist)
}

func newTree(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) *Tree {
	return &Tree{
		root: root, nic: n, mode: dirMode, read: read, wake: make(chan struct{}, 1), files: make(map[string]*os.File), last: make(map[string]uint64),
	}
}

// write writes everything except the counters. The caller holds life.
func (t *Tree) write() error {
	if t.written || t.gone {
		return nil
	}
	if err := t.sketch(); err != nil || t.written {
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
	os.Remove(filepath.Join(t.root, Unfinished)) // a leftover only causes a needless connection
	t.written = true
	return nil
}

// sketch writes the part of the tree that a program reads before it connects to the daemon. The caller holds life.
func (t *Tree) sketch() error {
	if t.adopts && !t.sketched {
		t.adopt()
	}
	t.adopts = false // later there is no other daemon
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

// finish returns whether everything was written; otherwise it removes the tree.
func (t *Tree) finish(w *writer) error {
	if w.err == nil {
		return nil
	}
	os.RemoveAll(t.root)
	t.sketched = false
	return fmt.Errorf("writing the device tree: %w", w.err)
}

// port returns the directory of the port.
func (t *Tree) port() string { return filepath.Join("class/infiniband", t.nic.Name, "ports/1") }

// follow opens the counter files and starts to update them. The caller holds life.
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

// unfollow reverts follow. The caller holds life.
func (t *Tree) unfollow() {
	if t.done == nil {
		return
	}
	close(t.done)
	<-t.ended
	t.done = nil
	t.closeFiles()
}

// fileMode gives read permission to everyone who may enter the directory.
func fileMode(dir fs.FileMode) fs.FileMode {
	return 0o600 | dir&0o111<<2
}

// A writer creates files and keeps the first error.
type writer struct {
	root              string
	dirMode, fileMode fs.FileMode
	made              map[string]bool   // directories already created
	same              map[string]string // files by content, to be linked; nil: no links
	err               error
}

// dir creates a directory, ignoring the umask.
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

// file writes an attribute and a newline.
func (w *writer) file(name string, format string, args ...any) {
	w.dir(filepath.Dir(name))
	if w.err != nil {
		return
	}
	path, text := filepath.Join(w.root, name), fmt.Sprintf(format+"\n", args...)
	if first := w.same[text]; first != "" {
		w.err = replacing(path, func() error { return os.Link(first, path) })
		return
	}
	if w.err = errors.Join(os.WriteFile(path, []byte(text), w.fileMode), os.Chmod(path, w.fileMode)); w.same != nil {
		w.same[text] = path
	}
}

func (w *writer) link(target, name string) {
	w.dir(filepath.Dir(name))
	if w.err == nil {
		path := filepath.Join(w.root, name)
		w.err = replacing(path, func() error { return os.Symlink(target, path) })
	}
}

// replacing calls make, which makes path. The daemon before may have begun to write an adopted tree: then path is made anew.
func replacing(path string, make func() error) error {
	err := make()
	if errors.Is(err, fs.ErrExist) && os.Remove(path) == nil {
		err = make()
	}
	return err
}

// verbsClass writes the files that libibverbs and librdmacm scan.
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

// The parent device is virtual, and visibly so: it is below devices/virtual, and its subsystem is not pci. Programs expect the
// link `device` to lead to a PCI device, and pyverbs lists its interfaces. NCCL merges the ports and virtual functions of a PCI
// device: it replaces the last, the third and the fourth character from the end of the path by 0 and reads the subsystem there.
// It finds this device, because these are 0.
const (
	parentClass  = "vrdma"
	parentDevice = "devices/virtual/" + parentClass + "/vrdma.0000"
)

func (w *writer) port(n *nic.NIC) {
	p := filepath.Join("class/infiniband", n.Name, "ports/1") + "/"
	state, phys := portState(n.Face())
	w.file(p+"state", "%s", state)
	w.file(p+"phys_state", "%s", phys)
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
	// The kernel also shows empty rows. Reading the type of one returns EINVAL there, which libibverbs expects; a plain file
	// cannot do that, so it has a type.
	f := n.Face()
	for row := range f.TableLen() {
		g, full := f.Entry(row)
		w.file(fmt.Sprintf("%sgids/%d", p, row), "%s", abitext.SysfsGID(g.GID))
		w.file(fmt.Sprintf("%sgid_attrs/types/%d", p, row), nic.GIDType)
		if full && g.NetDev != "" { // libibverbs rejects a GID table with a missing interface
			w.file(fmt.Sprintf("%sgid_attrs/ndevs/%d", p, row), "%s", g.NetDev)
		}
	}
	w.file(p+HWCounters+"/lifespan", "10")
}

// rateText formats width and speed like the kernel's rate_show.
func rateText(width, speed int) string {
	lanes := map[int]int{abi.Width1X: 1, abi.Width4X: 4}[width]
	switch speed {
	case abi.SpeedEDR:
		return fmt.Sprintf("%d Gb/sec (%dX EDR)", 25*lanes, lanes)
	default:
		return fmt.Sprintf("%g Gb/sec (%dX SDR)", 2.5*float64(lanes), lanes)
	}
}

// openCounters creates the counter files, zero or with their last values, and keeps them open.
func (t *Tree) openCounters(port string, w *writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range Counters(nic.Counters{}, roce.Counters{}) {
		key := filepath.Join(c.Dir, c.Name)
		w.dir(filepath.Join(port, c.Dir))
		if w.err != nil {
			return w.err
		}
		// Do not write to the existing file: it may be shared by all counters, see Later.
		path, fresh := filepath.Join(t.root, port, key), filepath.Join(t.root, "fresh")
		f, err := newFile(fresh, w.fileMode)
		if err != nil {
			return err
		}
		t.files[key] = f
		if err := errors.Join(put(f, t.last[key]), os.Rename(fresh, path)); err != nil {
			return err
		}
	}
	return nil
}

// put rewrites a counter. A concurrent reader sees the old or the new number: counters only grow, so one write replaces all digits.
func put(f *os.File, v uint64) error {
	b := make([]byte, 0, counterWidth)
	b = append(strconv.AppendUint(b, v, 10), '\n')
	_, err := f.WriteAt(b, 0)
	return err
}

// Sync updates the counter files before it returns, and reports whether any changed.
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

// Poke requests an update of the counters soon.
func (t *Tree) Poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// refresh updates the counters periodically.
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

// Remove deletes the tree. It may be called again.
func (t *Tree) Remove() error {
	t.Leave()
	err := os.RemoveAll(t.root)
	// The parent directory may contain the shared object, which stays.
	if rerr := os.Remove(filepath.Dir(t.root)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) && !errors.Is(rerr, syscall.ENOTEMPTY) {
		err = errors.Join(err, rerr)
	}
	return err
}

// Leave stops all writing, and leaves the files to the owner of the directory.
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

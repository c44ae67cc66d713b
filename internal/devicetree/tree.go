package devicetree

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

	"vrdma/internal/abi"
	"vrdma/internal/abitext"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
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

// A Tree is the device tree on disk.
type Tree struct {
	root  string
	read  func() []Counter
	wake  chan struct{}
	done  chan struct{}
	stop  sync.Once // closes done
	ended chan struct{}

	mu    sync.Mutex
	files map[string]*os.File // guarded by mu; by dir/name
	last  map[string]uint64   // guarded by mu
}

// New writes the tree of n below root; read reads the counters.
func New(root string, n *nic.NIC, dirMode fs.FileMode, read func() []Counter) (*Tree, error) {
	t := &Tree{
		root: root, read: read, wake: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}),
		files: make(map[string]*os.File), last: make(map[string]uint64),
	}
	if err := os.RemoveAll(root); err != nil {
		return nil, fmt.Errorf("clearing the old device tree: %w", err)
	}
	w := &writer{root: root, dirMode: dirMode | 0o700, fileMode: fileMode(dirMode)}
	w.verbsClass(n.Name)
	w.device(n)
	w.port(n)
	if w.err == nil {
		w.err = t.openCounters(filepath.Join("class/infiniband", n.Name, "ports/1"), w)
	}
	if w.err == nil {
		w.err = w.allow()
	}
	if w.err != nil {
		t.closeFiles()
		os.RemoveAll(root)
		return nil, fmt.Errorf("writing the device tree: %w", w.err)
	}
	go t.refresh()
	return t, nil
}

// fileMode lets whoever may enter the directory read.
func fileMode(dir fs.FileMode) fs.FileMode {
	return 0o600 | dir&0o111<<2
}

// A writer makes files and remembers the first error.
type writer struct {
	root              string
	dirMode, fileMode fs.FileMode
	err               error
}

func (w *writer) dir(name string) {
	if w.err == nil {
		w.err = os.MkdirAll(filepath.Join(w.root, name), w.dirMode)
	}
}

// file writes one attribute, newline included.
func (w *writer) file(name string, format string, args ...any) {
	w.dir(filepath.Dir(name))
	if w.err == nil {
		w.err = os.WriteFile(filepath.Join(w.root, name), fmt.Appendf(nil, format+"\n", args...), w.fileMode)
	}
}

func (w *writer) link(target, name string) {
	w.dir(filepath.Dir(name))
	if w.err == nil {
		w.err = os.Symlink(target, filepath.Join(w.root, name))
	}
}

// allow gives everything the modes that were asked for, whatever the umask.
func (w *writer) allow() error {
	return filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.Chmod(path, w.dirMode)
		case d.Type().IsRegular():
			return os.Chmod(path, w.fileMode)
		}
		return nil
	})
}

// verbsClass is what libibverbs and librdmacm scan.
func (w *writer) verbsClass(device string) {
	w.file("class/infiniband_verbs/abi_version", "%d", abi.VerbsABIVersion)
	const uverbs = "class/infiniband_verbs/uverbs0/"
	w.file(uverbs+"ibdev", "%s", device)
	w.file(uverbs+"dev", "%d:%d", abi.UverbsMajor, abi.UverbsMinor)
	w.file(uverbs+"abi_version", "%d", abi.RxeABIVersion)
	w.link("../../infiniband/"+device+"/device", uverbs+"device")
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
	if len(n.GIDs) > 0 {
		w.file(d+"parent", "%s", n.GIDs[0].NetDev)
	}
	w.dir(d + "device/net")
	for _, g := range n.GIDs {
		if g.NetDev != "" {
			w.dir(d + "device/net/" + filepath.Base(g.NetDev))
		}
	}
	w.dir(d + "device/infiniband/" + n.Name)
	w.dir(d + "device/infiniband_verbs/uverbs0")
}

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
	for i, g := range n.GIDs {
		w.file(fmt.Sprintf("%sgids/%d", p, i), "%s", abitext.SysfsGID(g.GID))
		w.file(fmt.Sprintf("%sgid_attrs/types/%d", p, i), nic.GIDType)
		w.file(fmt.Sprintf("%sgid_attrs/ndevs/%d", p, i), "%s", g.NetDev)
	}
	// The kernel shows the empty rows too. Reading the type of one gives EINVAL
	// there, which libibverbs knows; a plain file cannot do that, so it has one.
	for i := len(n.GIDs); i < n.GIDTableLen(); i++ {
		w.file(fmt.Sprintf("%sgids/%d", p, i), "%s", abitext.SysfsGID(transport.GID{}))
		w.file(fmt.Sprintf("%sgid_attrs/types/%d", p, i), nic.GIDType)
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

// openCounters makes the counter files, all zero, and keeps them open.
func (t *Tree) openCounters(port string, w *writer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range Counters(nic.Counters{}, link.Counters{}) {
		key := filepath.Join(c.Dir, c.Name)
		w.dir(filepath.Join(port, c.Dir))
		if w.err != nil {
			return w.err
		}
		f, err := os.OpenFile(filepath.Join(t.root, port, key), os.O_RDWR|os.O_CREATE, w.fileMode)
		if err != nil {
			return err
		}
		t.files[key], t.last[key] = f, c.Value
		if err := put(f, c.Value); err != nil {
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
func (t *Tree) refresh() {
	defer close(t.ended)
	period := counterPeriod
	for {
		select {
		case <-t.done:
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
	t.stop.Do(func() { close(t.done) })
	<-t.ended
	t.closeFiles()
	err := os.RemoveAll(t.root)
	// The directory around it may hold the shared object, which is not ours.
	if rerr := os.Remove(filepath.Dir(t.root)); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) && !errors.Is(rerr, syscall.ENOTEMPTY) {
		err = errors.Join(err, rerr)
	}
	return err
}

func (t *Tree) closeFiles() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range t.files {
		f.Close()
	}
	clear(t.files)
}

package etcdtest

import (
	"net"
	"sync"
	"testing"
)

// A proxy forwards connections to a member. While it is cut, it accepts connections and is silent.
type proxy struct {
	address, to string
	l           net.Listener
	mu          sync.Mutex
	open        map[net.Conn]bool
	isCut       bool
	healed      chan struct{} // closed when it is not cut
	isMute      bool
	spoken      chan struct{} // closed when it is not mute
}

func openProxy(t testing.TB, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &proxy{address: l.Addr().String(), to: to, l: l, open: make(map[net.Conn]bool), healed: make(chan struct{}), spoken: make(chan struct{})}
	close(d.healed)
	close(d.spoken)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.pass(c)
		}
	}()
	return d
}

// pass carries one connection.
func (d *proxy) pass(c net.Conn) {
	defer d.drop(c)
	d.keep(c)
	<-d.whole()
	to, err := net.Dial("tcp", d.to)
	if err != nil {
		return
	}
	defer d.drop(to)
	d.keep(to)
	both := make(chan struct{}, 2)
	for _, way := range []struct {
		to, from net.Conn
		whole    func() <-chan struct{}
	}{{c, to, d.answers}, {to, c, d.whole}} {
		go func() {
			defer func() { both <- struct{}{} }()
			carry(way.to, way.from, way.whole)
		}()
	}
	<-both
}

// carry copies data, and holds it while that direction is cut.
func carry(to, from net.Conn, whole func() <-chan struct{}) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		<-whole()
		if _, e := to.Write(b[:n]); err != nil || e != nil {
			return
		}
	}
}

// answers is whole for what members say.
func (d *proxy) answers() <-chan struct{} {
	d.mu.Lock()
	mute := d.spoken
	d.mu.Unlock()
	<-mute
	return d.whole()
}

// mute holds the members' answers and forwards requests.
func (d *proxy) mute(mute bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if mute == d.isMute {
		return
	}
	if d.isMute = mute; mute {
		d.spoken = make(chan struct{})
	} else {
		close(d.spoken)
	}
}

func (d *proxy) whole() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.healed
}

// cut gives no notice, like a cut cable. Clients give up after their own timeouts.
func (d *proxy) cut(cut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cut == d.isCut {
		return
	}
	if d.isCut = cut; cut {
		d.healed = make(chan struct{})
	} else {
		close(d.healed)
	}
}

func (d *proxy) keep(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[c] = true
}

func (d *proxy) drop(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.open, c)
	c.Close()
}

func (d *proxy) close() {
	d.cut(false)
	d.mute(false)
	d.l.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.open {
		c.Close()
	}
}

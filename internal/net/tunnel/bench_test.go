package tunnel

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/roce"
)

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// report reports the rate of n bytes since begin, and the processor time used.
func report(b *testing.B, n int64, begin time.Time, used time.Duration) {
	d := time.Since(begin)
	b.ReportMetric(float64(n)*8/d.Seconds()/1e9, "Gb/s")
	b.ReportMetric((cpu()-used).Seconds()*1000/(float64(n)/1e9), "cpu-ms/GB")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkTunnel moves messages from one tunnel to another over the loopback interface, with both ends in this process.
func BenchmarkTunnel(b *testing.B) {
	for _, size := range []int{1094, 4166} { // path MTU 1024 and 4096
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			x, y := realHost(b, "127.0.0.1", freePort(b, "127.0.0.1")), realHost(b, "127.0.0.2", freePort(b, "127.0.0.2"))
			introduce(b, x, y)
			m := []roce.Message{x.to(y, make([]byte, 60000/size*size), size)}
			const window = 256 << 10 // bytes in flight, as a requester has
			var sent, got int64
			begin, used := time.Now(), cpu()
			for heard := begin; sent < int64(b.N) || got < sent; {
				if sent < int64(b.N) && sent-got < window {
					if n, _ := x.tun.Send(m); n == 1 {
						sent += int64(len(m[0].Data))
					}
				}
				for i := range y.msgs {
					y.msgs[i].Data = y.msgs[i].Data[:1<<16]
				}
				n, _ := y.tun.Receive(y.msgs)
				for _, r := range y.msgs[:n] {
					got += int64(len(r.Data))
				}
				if n == 0 {
					runtime.Gosched()
					if time.Since(heard) > time.Second {
						b.Logf("%d of %d bytes were lost", sent-got, sent)
						got, heard = sent, time.Now()
					}
				} else {
					heard = time.Now()
				}
			}
			report(b, got, begin, used)
		})
	}
}

// BenchmarkPingPong measures half of the round trip time of 64 bytes.
func BenchmarkPingPong(b *testing.B) {
	turn := func(h *testHost) {
		for {
			h.msgs[0].Data = h.msgs[0].Data[:1<<16]
			if n, _ := h.tun.Receive(h.msgs[:1]); n == 1 {
				return
			}
			runtime.Gosched()
		}
	}
	b.Run("tunnel", func(b *testing.B) {
		x, y := realHost(b, "127.0.0.1", freePort(b, "127.0.0.1")), realHost(b, "127.0.0.2", freePort(b, "127.0.0.2"))
		introduce(b, x, y)
		xy, yx := []roce.Message{x.to(y, make([]byte, 114), 0)}, []roce.Message{y.to(x, make([]byte, 114), 0)}
		for b.Loop() {
			_, _ = x.tun.Send(xy)
			turn(y)
			_, _ = y.tun.Send(yx)
			turn(x)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2/1000, "µs/way")
	})
	b.Run("udp", func(b *testing.B) {
		x, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			b.Fatal(err)
		}
		defer x.Close()
		raw, err := x.SyscallConn()
		if err != nil {
			b.Fatal(err)
		}
		to := x.LocalAddr().(*net.UDPAddr).AddrPort()
		data := make([]byte, 114)
		for b.Loop() {
			for range 2 {
				if _, err := x.WriteToUDPAddrPort(data, to); err != nil {
					b.Fatal(err)
				}
				_ = raw.Control(func(fd uintptr) {
					for {
						if n, _, _ := unix.Recvfrom(int(fd), data, unix.MSG_DONTWAIT); n > 0 {
							return
						}
					}
				})
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2/1000, "µs/way")
	})
}

// BenchmarkSeal measures the cipher alone, on one processor.
func BenchmarkSeal(b *testing.B) {
	for _, size := range []int{1142, 4214} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c, err := chacha20poly1305.New(make([]byte, 32))
			if err != nil {
				b.Fatal(err)
			}
			p, nonce := make([]byte, size+16), make([]byte, 12)
			begin, used := time.Now(), cpu()
			for b.Loop() {
				c.Seal(p[:0], nonce, p[:size], nil)
			}
			report(b, int64(b.N*size), begin, used)
		})
	}
}

// BenchmarkTLS measures TLS over TCP as an alternative. It would need a stream between each two hosts, and RDMA's
// retransmission on top of TCP's.
func BenchmarkTLS(b *testing.B) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &k.PublicKey, k)
	if err != nil {
		b.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: k}}})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	done := make(chan int64)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(done)
			return
		}
		n, _ := io.Copy(io.Discard, c)
		done <- n
	}()
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		b.Fatal(err)
	}
	data := make([]byte, 60000)
	begin, used := time.Now(), cpu()
	for n := 0; n < b.N; n += len(data) {
		if _, err := c.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	c.Close()
	report(b, <-done, begin, used)
}

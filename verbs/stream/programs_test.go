package stream_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"vrdma.dev/vrdma/internal/testkit/testdaemon"
	"vrdma.dev/vrdma/verbs/stream"
)

// identity returns a certificate for 127.0.0.1 and the configurations of a server and a client that trust it.
func identity(t testing.TB) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "stream"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	own := []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: cert}}
	return &tls.Config{Certificates: own, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert},
		&tls.Config{Certificates: own, RootCAs: pool, ServerName: "127.0.0.1"}
}

// place returns a listener and a provider to dial it.
func place(t testing.TB) (net.Listener, *stream.Provider) {
	t.Helper()
	socket := testdaemon.Spawn(t)
	l, err := provider(t, socket, stream.Config{}).Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, provider(t, socket, stream.Config{})
}

// TestTLS authenticates both sides, and sends in both directions at once.
func TestTLS(t *testing.T) {
	l, p := place(t)
	server, client := identity(t)
	served := make(chan error, 1)
	go func() {
		c, err := tls.NewListener(l, server).Accept()
		if err == nil {
			defer c.Close()
			_, err = io.Copy(c, c)
		}
		served <- err
	}()
	raw, err := p.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, client)
	defer c.Close()
	want := make([]byte, 3<<20)
	rand.Read(want)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(want); err != nil {
			t.Error(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	got, err := io.ReadAll(c)
	wg.Wait()
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came back of %d: %v", len(got), len(want), err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestHTTP2 sends many concurrent requests on one TLS connection.
func TestHTTP2(t *testing.T) {
	l, p := place(t)
	server, client := identity(t)
	srv := &http.Server{TLSConfig: server, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.ServeTLS(l, "", "") }()
	tr := &http.Transport{DialContext: p.DialContext, TLSClientConfig: client, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	c := http.Client{Transport: tr, Timeout: time.Minute}
	var wg sync.WaitGroup
	for i := range 20 {
		want := bytes.Repeat([]byte{byte(i)}, 100000)
		wg.Go(func() {
			r, err := c.Post("https://"+l.Addr().String()+"/", "text/plain", bytes.NewReader(want))
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			got, err := io.ReadAll(r.Body)
			if err != nil || !bytes.Equal(got, want) || r.ProtoMajor != 2 {
				t.Errorf("%d bytes of %d over %s: %v", len(got), len(want), r.Proto, err)
			}
		})
	}
	wg.Wait()
	srv.Close()
	<-served
}

// TestGRPC runs gRPC's health service over RDMA, plain and with TLS.
func TestGRPC(t *testing.T) {
	for _, secure := range []bool{false, true} {
		l, p := place(t)
		mine, theirs := insecure.NewCredentials(), insecure.NewCredentials()
		if secure {
			server, client := identity(t)
			mine, theirs = credentials.NewTLS(server), credentials.NewTLS(client)
		}
		srv := grpc.NewServer(grpc.Creds(mine))
		state := health.NewServer()
		grpc_health_v1.RegisterHealthServer(srv, state)
		served := make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(theirs), grpc.WithContextDialer(p.Dial))
		if err != nil {
			t.Fatal(err)
		}
		converse(t, grpc_health_v1.NewHealthClient(conn), state)
		conn.Close()
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// converse makes many concurrent calls, and follows a stream of answers.
func converse(t *testing.T, c grpc_health_v1.HealthClient, state *health.Server) {
	t.Helper()
	const serving, not = grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if r, err := c.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil || r.Status != serving {
				t.Errorf("%v, %v", r, err)
			}
		})
	}
	wg.Wait()
	follow, err := c.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []grpc_health_v1.HealthCheckResponse_ServingStatus{serving, not, serving} {
		state.SetServingStatus("", want)
		if r, err := follow.Recv(); err != nil || r.Status != want {
			t.Errorf("%v, %v, want %v", r, err, want)
		}
	}
}

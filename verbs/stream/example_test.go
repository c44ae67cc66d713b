package stream_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"

	"vrdma.dev/vrdma/verbs"
	"vrdma.dev/vrdma/verbs/stream"
)

// http.Server and http.Client over RDMA: a listener of one's own, and a dialer.
func Example() {
	ctx := context.Background()
	p, err := stream.Open(ctx, verbs.Options{}, stream.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	l, err := p.Listen("127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s over %s", r.URL.Path, l.Addr().Network())
	})}
	go srv.Serve(l)
	defer srv.Close()

	t := &http.Transport{DialContext: p.DialContext}
	defer t.CloseIdleConnections()
	r, err := (&http.Client{Transport: t}).Get("http://" + l.Addr().String() + "/hello")
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(text))
	// Output: /hello over rdma
}

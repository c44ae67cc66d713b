package kubeapi

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestClient(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	stuck := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		switch r.Method + " " + r.URL.EscapedPath() {
		case "GET /things/a":
			io.WriteString(w, `{"token":"`+r.Header.Get("Authorization")+`"}`)
		case "GET /things/..%2Fb", "POST /things", "PUT /things/a", "DELETE /things/a":
			w.WriteHeader(http.StatusCreated)
			json.NewEncoder(w).Encode(map[string]string{"body": string(text), "type": r.Header.Get("Content-Type")})
		case "GET /things/forbidden":
			w.WriteHeader(http.StatusForbidden)
			io.WriteString(w, `{"kind":"Status","code":403,"message":"cannot get things"}`)
		case "PUT /things/conflict":
			w.WriteHeader(http.StatusConflict)
		case "GET /things/stuck":
			<-stuck
		case "GET /things/garbage":
			io.WriteString(w, "{")
		case "GET /things/busy":
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, "<html>")
		}
	}))
	defer s.Close()
	defer close(stuck)
	c, err := At(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	c.Token = token
	var got struct{ Token, Body, Type string }
	if err := c.Get(t.Context(), "/things/a", &got); err != nil || got.Token != "Bearer first" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := os.WriteFile(token, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), "/things/a", &got); err != nil || got.Token != "Bearer second" {
		t.Errorf("with a new token: %+v, %v", got, err)
	}
	if err := c.Get(t.Context(), Path("/things", "../b"), &got); err != nil {
		t.Errorf("a name with a /: %v", err)
	}
	if err := c.Create(t.Context(), "/things", map[string]int{"x": 1}, &got); err != nil || got.Body != `{"x":1}` || got.Type != "application/json" {
		t.Errorf("create: %+v, %v", got, err)
	}
	if err := c.Delete(t.Context(), "/things/a"); err != nil {
		t.Error(err)
	}
	if err := c.Update(t.Context(), "/things/conflict", 1, nil); !errors.Is(err, ErrConflict) {
		t.Errorf("conflict: %v", err)
	}
	if err := c.Get(t.Context(), "/things/none", &got); !errors.Is(err, ErrNotFound) {
		t.Errorf("not there: %v", err)
	}
	for path, want := range map[string]string{"forbidden": "cannot get things: the service account lacks a right", "garbage": "unexpected end", "busy": "429"} {
		if err := c.Get(t.Context(), "/things/"+path, &got); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	c.Answer = 10 * time.Millisecond
	if err := c.Get(t.Context(), "/things/stuck", &got); err == nil {
		t.Error("a server that does not answer has answered")
	}
	for _, bad := range []string{"", "127.0.0.1:10255", "ftp://x"} {
		if _, err := At(bad); err == nil {
			t.Errorf("At(%q) works", bad)
		}
	}
}

// Only the cluster's own authority signs the certificate of a cluster's server.
func TestWith(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]string{"token": r.Header.Get("Authorization")})
	}))
	s.Config.ErrorLog = log.New(t.Output(), "", 0) // the handshake that we refuse
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	ca, token, none := filepath.Join(dir, "ca"), filepath.Join(dir, "token"), filepath.Join(dir, "none")
	for file, text := range map[string][]byte{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), token: []byte("secret"), none: []byte("x")} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := With(s.URL, token, ca)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Token string }
	if err := c.Get(t.Context(), "/", &got); err != nil || got.Token != "Bearer secret" {
		t.Errorf("%+v, %v", got, err)
	}
	if c, err = At(s.URL); err == nil {
		err = c.Get(t.Context(), "/", &got)
	}
	if err == nil {
		t.Error("a certificate of nobody's is taken")
	}
	if _, err := With(s.URL, token, none); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("no authority: %v", err)
	}
}

// The DNS server of the test cluster: names of Services, which it asks the API server for at each question.
//
// It answers what `helm test` and pods need, A records of NAME.NAMESPACE.svc.cluster.local, and nothing else: whatever
// else is asked does not exist.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	zone = ".svc.cluster.local."
	// Seconds that an answer holds: pods come and go, so none is to be kept.
	lifetime = 0
	// Plain DNS over UDP has no longer messages.
	longest = 512
)

type resolver struct {
	server string
	client *http.Client
}

// The part of a list of EndpointSlices that matters.
type slices struct {
	Items []struct {
		Endpoints []struct {
			Addresses  []string `json:"addresses"`
			Conditions struct {
				Ready *bool `json:"ready"`
			} `json:"conditions"`
		} `json:"endpoints"`
	} `json:"items"`
}

// The addresses of the ready pods behind a Service, as a headless Service has them.
func (r *resolver) addresses(ctx context.Context, name string) ([]netip.Addr, error) {
	service, namespace, found := strings.Cut(strings.TrimSuffix(strings.ToLower(name), zone), ".")
	if !found || !strings.HasSuffix(strings.ToLower(name), zone) || strings.Contains(namespace, ".") {
		return nil, nil
	}
	selector := url.Values{"labelSelector": {"kubernetes.io/service-name=" + service}}
	address := fmt.Sprintf("%s/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices?%s",
		r.server, url.PathEscape(namespace), selector.Encode())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	var list slices
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, err
	}
	return list.ready(), nil
}

func (s *slices) ready() []netip.Addr {
	var all []netip.Addr
	for _, slice := range s.Items {
		for _, endpoint := range slice.Endpoints {
			if endpoint.Conditions.Ready != nil && !*endpoint.Conditions.Ready {
				continue
			}
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
					all = append(all, address)
				}
			}
		}
	}
	return all
}

// The answer to a message, or nothing when it is none that can be answered.
func (r *resolver) answer(ctx context.Context, message []byte) []byte {
	var query dnsmessage.Message
	if err := query.Unpack(message); err != nil || query.Response || len(query.Questions) != 1 {
		return nil
	}
	question := query.Questions[0]
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: query.ID, Response: true, Authoritative: true, RecursionDesired: query.RecursionDesired,
		},
		Questions: query.Questions,
	}
	found, err := r.addresses(ctx, question.Name.String())
	switch {
	case err != nil:
		log.Printf("%s: %v", question.Name, err)
		reply.RCode = dnsmessage.RCodeServerFailure
	case len(found) == 0:
		reply.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		for _, address := range found {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET, TTL: lifetime},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	packed, err := reply.Pack()
	if err != nil || len(packed) > longest {
		log.Printf("%s: %d bytes, %v", question.Name, len(packed), err)
		return nil
	}
	return packed
}

func (r *resolver) serve(socket net.PacketConn) error {
	buffer := make([]byte, longest)
	for {
		length, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return err
		}
		message := bytes.Clone(buffer[:length])
		go func() {
			ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
			defer stop()
			if answer := r.answer(ctx, message); answer != nil {
				// Who gets no answer asks again.
				_, _ = socket.WriteTo(answer, from)
			}
		}()
	}
}

func run() error {
	listen := flag.String("listen", "10.96.0.10:53", "address to listen on, UDP")
	server := flag.String("server", "", "URL of the API server")
	authority := flag.String("certificate-authority", "", "file with the authority of the API server")
	certificate := flag.String("client-certificate", "", "file with our certificate for the API server")
	key := flag.String("client-key", "", "file with the key of that certificate")
	flag.Parse()

	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(*authority)
	if err != nil {
		return err
	}
	if !trusted.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate", *authority)
	}
	pair, err := tls.LoadX509KeyPair(*certificate, *key)
	if err != nil {
		return err
	}
	settings := &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	socket, err := net.ListenPacket("udp", *listen)
	if err != nil {
		return err
	}
	r := &resolver{server: *server, client: &http.Client{Transport: &http.Transport{TLSClientConfig: settings}}}
	return r.serve(socket)
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

// Makes the forms of serving certificates and CA data that a client of an API server may meet, and plays each against
// Go's TLS client, set up as client-go sets it up (the CA data by AppendCertsFromPEM, the name of the server, nothing else).
// Writes them with what Go says into forms.json, and which proxy Go takes into proxies.json; no private key is kept. Run by
// ./play.
package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"strings"
	"time"
)

// form is one row: what the server sends, what the client trusts, and what Go's client makes of it.
type form struct {
	Form     string   `json:"form"`
	Accepted bool     `json:"accepted"`
	Go       string   `json:"go"`
	Name     string   `json:"name"`
	CA       string   `json:"ca"`
	Chain    []string `json:"chain"`
}

// cert is a certificate and its key.
type cert struct {
	der []byte
	x   *x509.Certificate
	key crypto.Signer
}

var (
	begin  = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	past   = time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC)
	future = time.Date(2120, 1, 1, 0, 0, 0, 0, time.UTC)
	end    = time.Date(2126, 1, 1, 0, 0, 0, 0, time.UTC)
	serial int64
	forms  []form
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func ec(curve elliptic.Curve) crypto.Signer { return must(ecdsa.GenerateKey(curve, rand.Reader)) }
func p256() crypto.Signer                   { return ec(elliptic.P256()) }
func rsaKey(bits int) crypto.Signer         { return must(rsa.GenerateKey(rand.Reader, bits)) }

type change func(*x509.Certificate)

// issue makes a certificate for the key; it is self-signed without an issuer.
func issue(issuer *cert, key crypto.Signer, template *x509.Certificate, changes ...change) *cert {
	serial++
	template.SerialNumber = big.NewInt(serial)
	if template.NotBefore.IsZero() {
		template.NotBefore, template.NotAfter = begin, end
	}
	for _, apply := range changes {
		apply(template)
	}
	parent, signer := template, key
	if issuer != nil {
		parent, signer = issuer.x, issuer.key
	}
	// What is made is no matter of what the issuer may do.
	der := must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))
	return &cert{der, must(x509.ParseCertificate(der)), key}
}

func ca(name string, key crypto.Signer, issuer *cert, changes ...change) *cert {
	return issue(issuer, key, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, IsCA: true,
	}, changes...)
}

func leaf(issuer *cert, key crypto.Signer, changes ...change) *cert {
	return issue(issuer, key, &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"api.example.com"},
	}, changes...)
}

// asCA is what `openssl req -x509` writes: CA:TRUE, and no usages.
func asCA(t *x509.Certificate) {
	t.IsCA, t.BasicConstraintsValid, t.KeyUsage, t.ExtKeyUsage = true, true, 0, nil
}

func dates(from, to time.Time) change {
	return func(t *x509.Certificate) { t.NotBefore, t.NotAfter = from, to }
}
func usages(usages ...x509.ExtKeyUsage) change {
	return func(t *x509.Certificate) { t.ExtKeyUsage = usages }
}
func keyUsage(usage x509.KeyUsage) change {
	return func(t *x509.Certificate) { t.KeyUsage = usage }
}
func signedWith(algorithm x509.SignatureAlgorithm) change {
	return func(t *x509.Certificate) { t.SignatureAlgorithm = algorithm }
}
func pathLength(length int) change {
	return func(t *x509.Certificate) { t.MaxPathLen, t.MaxPathLenZero = length, true }
}
func names(names ...string) change {
	return func(t *x509.Certificate) { t.IPAddresses, t.DNSNames = nil, names }
}
func address(ip string) change {
	return func(t *x509.Certificate) { t.IPAddresses, t.DNSNames = []net.IP{net.ParseIP(ip)}, nil }
}
func subject(name pkix.Name) change {
	return func(t *x509.Certificate) { t.Subject = name }
}
func extension(oid asn1.ObjectIdentifier, critical bool, value []byte) change {
	return func(t *x509.Certificate) {
		t.ExtraExtensions = append(t.ExtraExtensions, pkix.Extension{Id: oid, Critical: critical, Value: value})
	}
}
func notCA(t *x509.Certificate) { t.IsCA = false }
func bare(t *x509.Certificate)  { t.IsCA, t.BasicConstraintsValid = false, false }

// versionOne makes a self-signed certificate of version 1, which has no extensions.
func versionOne(name string) *cert {
	key := p256()
	model := ca(name, key, nil)
	type validity struct{ NotBefore, NotAfter time.Time }
	type tbs struct {
		Serial    *big.Int
		Algorithm pkix.AlgorithmIdentifier
		Issuer    asn1.RawValue
		Validity  validity
		Subject   asn1.RawValue
		Key       asn1.RawValue
	}
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}}
	name1 := asn1.RawValue{FullBytes: model.x.RawSubject}
	signed := must(asn1.Marshal(tbs{
		big.NewInt(1), algorithm, name1, validity{begin, end}, name1, asn1.RawValue{FullBytes: model.x.RawSubjectPublicKeyInfo},
	}))
	hash := sha256.Sum256(signed)
	signature := must(key.Sign(rand.Reader, hash[:], crypto.SHA256))
	der := must(asn1.Marshal(struct {
		TBS       asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: signed}, algorithm, asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}}))
	return &cert{der, must(x509.ParseCertificate(der)), key}
}

func text(certs ...*cert) string {
	var out bytes.Buffer
	for _, cert := range certs {
		must(0, pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.der}))
	}
	return out.String()
}

func trust(certs ...*cert) string { return text(certs...) }

func play(name string, trusted string, chain ...*cert) { playFor(name, "127.0.0.1", trusted, chain...) }

// playFor lets a client that wants to reach this name meet a server that sends the chain.
func playFor(name, host, trusted string, chain ...*cert) {
	row := form{Form: name, Name: host, CA: trusted, Accepted: true, Go: "accepted"}
	served := tls.Certificate{PrivateKey: chain[0].key}
	for _, cert := range chain {
		served.Certificate = append(served.Certificate, cert.der)
		row.Chain = append(row.Chain, text(cert))
	}
	if err := handshake(host, trusted, served); err != nil {
		row.Accepted, row.Go = false, err.Error()
		// The time of the run does not belong into the file.
		if at := strings.Index(row.Go, ": current time "); at >= 0 {
			row.Go = row.Go[:at]
		}
	}
	forms = append(forms, row)
}

type refused string

func (r refused) Error() string { return string(r) }

func handshake(host, trusted string, served tls.Certificate) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(trusted)) {
		return refused("unable to load root certificates")
	}
	near, far := net.Pipe()
	deadline := time.Now().Add(5 * time.Second)
	_, _ = near.SetDeadline(deadline), far.SetDeadline(deadline)
	server := make(chan error, 1)
	go func() {
		config := &tls.Config{Certificates: []tls.Certificate{served}, SessionTicketsDisabled: true}
		server <- tls.Server(far, config).Handshake()
	}()
	client := tls.Client(near, &tls.Config{RootCAs: pool, ServerName: host, NextProtos: []string{"h2", "http/1.1"}})
	err := client.Handshake()
	if err == nil {
		err = <-server
	}
	_, _ = near.Close(), far.Close()
	return err
}

func write(file string, rows any) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	must(0, encoder.Encode(rows))
	must(0, os.WriteFile(file, out.Bytes(), 0o644))
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "proxy" {
		proxyOf(os.Args[2])
		return
	}
	write("proxies.json", proxies())
	keys()
	issuers()
	chains()
	hosts()
	bundles()
	write("forms.json", forms)
}

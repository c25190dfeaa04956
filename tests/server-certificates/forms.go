package main

import (
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net"
	"strings"
)

// keys are forms of keys and of signatures.
func keys() {
	root := ca("root", p256(), nil)
	play("plain", trust(root), leaf(root, p256()))
	_, edwards, _ := ed25519.GenerateKey(rand.Reader)
	play("Ed25519 key", trust(root), leaf(root, edwards))
	play("P-384 key", trust(root), leaf(root, ec(elliptic.P384())))
	play("P-521 key", trust(root), leaf(root, ec(elliptic.P521())))
	play("P-224 key", trust(root), leaf(root, ec(elliptic.P224())))
	play("RSA key of 2048 bits", trust(root), leaf(root, rsaKey(2048)))
	play("RSA key of 1024 bits", trust(root), leaf(root, rsaKey(1024)))
	_, edwards, _ = ed25519.GenerateKey(rand.Reader)
	edwardsRoot := ca("root", edwards, nil)
	play("issuer with an Ed25519 key", trust(edwardsRoot), leaf(edwardsRoot, p256()))
	for _, of := range []struct {
		name  string
		curve elliptic.Curve
	}{{"P-224", elliptic.P224()}, {"P-256", elliptic.P256()}, {"P-384", elliptic.P384()}, {"P-521", elliptic.P521()}} {
		root := ca("root", ec(of.curve), nil)
		for _, hash := range []x509.SignatureAlgorithm{x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.ECDSAWithSHA512} {
			play("issuer with a "+of.name+" key, "+hash.String(), trust(root), leaf(root, p256(), signedWith(hash)))
		}
	}
	root = ca("root", ec(elliptic.P521()), nil)
	play("P-521 key, and issuer with a P-521 key", trust(root), leaf(root, ec(elliptic.P521())))
	root = ca("root", rsaKey(2048), nil)
	for _, algorithm := range []x509.SignatureAlgorithm{
		x509.SHA256WithRSA, x509.SHA384WithRSA, x509.SHA512WithRSA, x509.SHA256WithRSAPSS, x509.SHA512WithRSAPSS,
	} {
		play("issuer with an RSA key, "+algorithm.String(), trust(root), leaf(root, p256(), signedWith(algorithm)))
	}
	root = ca("root", rsaKey(1024), nil)
	play("issuer with an RSA key of 1024 bits", trust(root), leaf(root, p256()))
}

// issuers are forms of trust: what the CA data holds, and what it may issue.
func issuers() {
	own := leaf(nil, p256(), asCA)
	play("CA:TRUE, self-signed, its own CA (openssl req -x509)", trust(own), own)
	root := ca("root", p256(), nil)
	play("CA:TRUE, issued by a CA", trust(root), leaf(root, p256(), asCA))
	between := ca("between", p256(), root)
	play("CA:TRUE, issued by an intermediate", trust(root), leaf(between, p256(), asCA), between)
	play("CA:TRUE with the usages of a CA", trust(root), leaf(root, p256(), asCA, keyUsage(x509.KeyUsageCertSign)))
	play("CA:TRUE, of an unknown issuer", trust(ca("root", p256(), nil)), leaf(root, p256(), asCA))
	play("CA:TRUE, expired", trust(root), leaf(root, p256(), asCA, dates(begin, past)))
	play("CA:TRUE with a path length", trust(root), leaf(root, p256(), asCA, pathLength(0)))
	self := leaf(nil, p256())
	play("self-signed, its own CA", trust(self), self)
	issued := leaf(root, p256())
	play("CA data holds the server's certificate instead of its issuer", trust(issued), issued)
	play("CA data holds the server's certificate among others", trust(ca("other", p256(), nil), issued), issued, root)
	key := p256()
	play("CA data holds another certificate of the server's key", trust(leaf(root, key)), leaf(root, key))
	play("CA data holds a former self-signed certificate of the server's key", trust(leaf(nil, key, asCA)), leaf(nil, key, asCA))
	expired := leaf(root, p256(), dates(begin, past))
	play("CA data holds the server's certificate, which expired", trust(expired), expired)
	client := leaf(root, p256(), usages(x509.ExtKeyUsageClientAuth))
	play("CA data holds the server's certificate, which is for clients", trust(client), client)
	for _, of := range []struct {
		name   string
		change change
	}{{"CA:FALSE", notCA}, {"no basic constraints", bare}} {
		// An issuer that may not issue: made as a CA, since Go refuses to sign by another.
		key := p256()
		may, mayNot := ca("issuer", key, nil), ca("issuer", key, nil, of.change, keyUsage(0))
		play("issuer in the CA data has "+of.name, trust(mayNot), leaf(may, p256()))
		may, mayNot = ca("issuer", key, root), ca("issuer", key, root, of.change, keyUsage(0))
		play("intermediate has "+of.name, trust(root), leaf(may, p256()), mayNot)
		play("CA:TRUE, and the issuer in the CA data has "+of.name, trust(mayNot), leaf(may, p256(), asCA))
	}
	signs := keyUsage(x509.KeyUsageCRLSign)
	key = p256()
	may, mayNot := ca("issuer", key, root), ca("issuer", key, root, signs)
	play("issuer in the CA data may not sign certificates", trust(mayNot), leaf(may, p256()))
	play("intermediate may not sign certificates", trust(root), leaf(may, p256()), mayNot)
	play("CA without key usages", trust(ca("issuer", key, nil, keyUsage(0))), leaf(may, p256()))
	first := versionOne("first")
	play("CA of version 1", trust(first), leaf(first, p256()))
	play("expired CA", trust(ca("issuer", key, nil, dates(begin, past))), leaf(may, p256()))
	play("CA is not valid yet", trust(ca("issuer", key, nil, dates(future, end))), leaf(may, p256()))
	play("expired CA and its successor with the same key",
		trust(ca("issuer", key, nil, dates(begin, past)), ca("issuer", key, nil)), leaf(may, p256()))
	play("expired", trust(root), leaf(root, p256(), dates(begin, past)))
	play("not valid yet", trust(root), leaf(root, p256(), dates(future, end)))
	play("expired intermediate", trust(root), leaf(may, p256()), ca("issuer", key, root, dates(begin, past)))
	play("CA of the same name with another key", trust(ca("issuer", p256(), nil)), leaf(may, p256()))
	play("two CAs of one name", trust(ca("issuer", p256(), nil), ca("issuer", key, nil)), leaf(may, p256()))
	nameless := ca("", p256(), nil, subject(pkix.Name{}))
	play("CA and certificate without a subject", trust(nameless), leaf(nameless, p256(), subject(pkix.Name{})))
	unknown := extension(asn1.ObjectIdentifier{1, 2, 3, 4}, true, []byte{5, 0})
	play("unknown critical extension", trust(root), leaf(root, p256(), unknown))
	play("unknown extension", trust(root), leaf(root, p256(), extension(asn1.ObjectIdentifier{1, 2, 3, 4}, false, []byte{5, 0})))
	play("CA with an unknown critical extension", trust(ca("issuer", key, nil, unknown)), leaf(may, p256()))
}

// chains are forms of usages, of paths and of constraints.
func chains() {
	root := ca("root", p256(), nil)
	for _, of := range []struct {
		name   string
		usages []x509.ExtKeyUsage
	}{
		{"no extended usages", nil},
		{"any usage", []x509.ExtKeyUsage{x509.ExtKeyUsageAny}},
		{"usage of clients", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}},
		{"usages of clients and any", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageAny}},
	} {
		play(of.name, trust(root), leaf(root, p256(), usages(of.usages...)))
		play("CA:TRUE with "+of.name, trust(root), leaf(root, p256(), asCA, usages(of.usages...)))
		limited := ca("limited", p256(), root, usages(of.usages...))
		play("CA with "+of.name, trust(limited), leaf(limited, p256()))
		play("intermediate with "+of.name, trust(root), leaf(limited, p256()), limited)
	}
	play("an unknown usage alone", trust(root), leaf(root, p256(), func(t *x509.Certificate) {
		t.ExtKeyUsage, t.UnknownExtKeyUsage = nil, []asn1.ObjectIdentifier{{1, 2, 3, 4}}
	}))
	play("key usage of encipherment alone", trust(root), leaf(root, p256(), keyUsage(x509.KeyUsageKeyEncipherment)))
	first := ca("first", p256(), root)
	second := ca("second", p256(), first)
	served := leaf(second, p256())
	play("two intermediates", trust(root), served, second, first)
	play("two intermediates in another order", trust(root), served, first, second)
	play("an intermediate is missing", trust(root), served, second)
	play("an intermediate is trusted, its issuer is not", trust(first), served, second)
	play("an intermediate is trusted and sent", trust(first), served, second, first)
	play("the root is sent too", trust(root), served, second, first, root)
	play("a foreign certificate is sent too", trust(root), served, ca("foreign", p256(), nil), second, first)
	zero := ca("zero", p256(), nil, pathLength(0))
	play("CA with path length 0", trust(zero), leaf(zero, p256()))
	play("CA with path length 0, CA:TRUE", trust(zero), leaf(zero, p256(), asCA))
	under := ca("under", p256(), zero)
	play("CA with path length 0, and an intermediate", trust(zero), leaf(under, p256()), under)
	zero = ca("zero", p256(), root, pathLength(0))
	under = ca("under", p256(), zero)
	play("intermediate with path length 0, and another", trust(root), leaf(under, p256()), under, zero)
	for _, of := range []struct {
		name   string
		change change
	}{
		{"permits the name", func(t *x509.Certificate) { t.PermittedDNSDomains = []string{"example.com"} }},
		{"permits other names", func(t *x509.Certificate) { t.PermittedDNSDomains = []string{"example.org"} }},
		{"excludes the name", func(t *x509.Certificate) { t.ExcludedDNSDomains = []string{"example.com"} }},
		{"excludes the address", func(t *x509.Certificate) {
			t.ExcludedIPRanges = []*net.IPNet{{IP: net.IPv4(127, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
		}},
		{"permits other addresses", func(t *x509.Certificate) {
			t.PermittedIPRanges = []*net.IPNet{{IP: net.IPv4(10, 0, 0, 0).To4(), Mask: net.CIDRMask(8, 32)}}
		}},
	} {
		critical := func(t *x509.Certificate) { t.PermittedDNSDomainsCritical = true }
		limited := ca("limited", p256(), nil, of.change, critical)
		play("CA that "+of.name, trust(limited), leaf(limited, p256()))
		play("CA that "+of.name+", CA:TRUE", trust(limited), leaf(limited, p256(), asCA))
	}
}

// hosts are forms of names.
func hosts() {
	root := ca("root", p256(), nil)
	of := func(name, host string, changes ...change) {
		playFor(name, host, trust(root), leaf(root, p256(), changes...))
	}
	of("name", "api.example.com")
	of("name in capitals", "API.Example.com")
	of("name with a dot at its end", "api.example.com.")
	of("another name", "api.example.org")
	of("another address", "127.0.0.2")
	of("CA:TRUE, another address", "127.0.0.2", asCA)
	of("wildcard", "api.example.com", names("*.example.com"))
	of("wildcard for two labels", "a.api.example.com", names("*.example.com"))
	of("wildcard within a label", "api.example.com", names("a*.example.com"))
	of("name with an underscore", "my_api.example.com", names("my_api.example.com"))
	of("name of one label", "kubernetes", names("kubernetes"))
	of("address as a name", "127.0.0.1", names("127.0.0.1"))
	of("IPv6 address", "::1", address("::1"))
	of("IPv6 address, written otherwise", "0:0:0:0:0:0:0:1", address("::1"))
	mapped := append([]byte{0x30, 18, 0x87, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}, 127, 0, 0, 1)
	alternative := asn1.ObjectIdentifier{2, 5, 29, 17}
	of("IPv4 address within an IPv6 address", "127.0.0.1", names(), extension(alternative, false, mapped))
	of("name in the subject alone", "api.example.com", names(), subject(pkix.Name{CommonName: "api.example.com"}))
	of("no name at all", "api.example.com", names())
	self := leaf(nil, p256(), asCA, names("other.example.com"))
	playFor("its own CA with another name", "api.example.com", trust(self), self)
}

// bundles are forms of the CA data as a text.
func bundles() {
	root := ca("root", p256(), nil)
	served := leaf(root, p256())
	good := trust(root)
	play("CA data with a comment, and another before", "# a comment\n"+trust(ca("other", p256(), nil))+"text\n"+good, served)
	play("CA data with ends of lines as in DOS", strings.ReplaceAll(good, "\n", "\r\n"), served)
	play("CA data with a broken certificate before", "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n"+good, served)
	play("CA data with a broken certificate alone", "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n", served)
	play("CA data with bad Base64 before", "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"+good, served)
	play("CA data with a block that does not end", good+"-----BEGIN CERTIFICATE-----\nMAMC", served)
	play("CA data with a public key before", "-----BEGIN PUBLIC KEY-----\nMAMCAQE=\n-----END PUBLIC KEY-----\n"+good, served)
	play("CA data without a certificate", "nothing\n", served)
	play("CA data without an end of line", strings.TrimSuffix(good, "\n"), served)
	play("CA data with blanks before", "  \n\t"+good, served)
	play("CA data as a trusted certificate", strings.ReplaceAll(good, "CERTIFICATE", "TRUSTED CERTIFICATE"), served)
	play("CA data with headers", strings.Replace(good, "-----\n", "-----\nName: value\n\n", 1), served)
}

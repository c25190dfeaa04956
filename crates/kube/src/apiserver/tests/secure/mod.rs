//! TLS with an API server in this process: whom we trust, as whom we come, and what changes while we run.

mod proxies;
mod server;

use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_ED25519, SignatureAlgorithm};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Duration, timeout};

use crate::apiserver::connect_counted;
use crate::telemetry::Metrics;
use server::{Authority, Kubeconfig, Pair, Server, acceptor, ask, base64, self_signed};

const P256: &SignatureAlgorithm = &PKCS_ECDSA_P256_SHA256;
const HOST: &str = "127.0.0.1";

fn says(error: &str, words: &str) {
    assert!(error.contains(words), "{words}: {error}");
}

impl Server {
    /// Checks that a request of somebody without a certificate is answered, and comes with these credentials.
    async fn is_asked_with(&self, credentials: &str, client: &kube::Client) {
        assert_eq!(ask(client).await, Ok("@".to_owned()));
        assert_eq!(*self.authorization.lock(), credentials);
    }

    async fn is_asked_by(&self, kubeconfig: &Kubeconfig, credentials: &str) {
        let client = kubeconfig.connect().await.unwrap();
        self.is_asked_with(credentials, &client).await;
    }
}

#[tokio::test]
async fn keys_of_each_kind_are_good_for_servers_clients_and_authorities() {
    for kind in [P256, &PKCS_ECDSA_P384_SHA384, &PKCS_ECDSA_P521_SHA512, &PKCS_ED25519] {
        let authority = Authority::new("root", kind);
        let server = Server::start(acceptor(&authority.issue(&[HOST], kind), Some(&authority))).await;
        let kubeconfig = Kubeconfig::new(&server.url()).trusts(&authority.certificate);
        let client = kubeconfig.is(&authority.issue(&["me"], kind)).connect().await.unwrap();
        assert_eq!(ask(&client).await, Ok("me@".to_owned()), "{kind:?}");

        let own = self_signed(HOST, kind);
        let server = Server::start(acceptor(&own, None)).await;
        let client = Kubeconfig::new(&server.url()).trusts(&own.certificate).connect().await;
        assert_eq!(ask(&client.unwrap()).await, Ok("@".to_owned()), "{kind:?}");
    }
}

#[tokio::test]
async fn the_name_of_the_kubeconfig_is_checked_and_sent() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&["api.tenant.svc"], P256), None)).await;
    let by = |name: &'static str| {
        let kubeconfig = Kubeconfig::new(&server.url()).trusts(&authority.certificate);
        async move { kubeconfig.cluster("tls-server-name", name).connect().await }
    };
    let named = by("api.tenant.svc").await.unwrap();
    assert_eq!(ask(&named).await, Ok("@api.tenant.svc".to_owned()));
    let error = ask(&by("").await.unwrap()).await.unwrap_err();
    says(&error, "is not for 127.0.0.1, only for api.tenant.svc: ");
    says(&error, "set tls-server-name in the kubeconfig");
    let error = by("a name").await.err().unwrap().to_string();
    says(&error, "tls-server-name of the kubeconfig is neither");
}

#[tokio::test]
async fn ca_data_that_is_replaced_is_used_by_the_next_connection() {
    let (old, new) = (Authority::new("old", P256), Authority::new("new", P256));
    let server = Server::start(acceptor(&new.issue(&[HOST], P256), None)).await;
    let kubeconfig = Kubeconfig::new(&server.url()).cluster("certificate-authority", "ca.crt");
    kubeconfig.write("ca.crt", &old.certificate);
    let client = kubeconfig.connect().await.unwrap();
    let error = ask(&client).await.unwrap_err();
    says(&error, "add the certificate of its issuer (\"CN=new\") to the CA data");

    kubeconfig.write("ca.crt", &new.certificate);
    assert_eq!(ask(&client).await, Ok("@".to_owned()));
    // One that cannot be read leaves the one before it.
    kubeconfig.write("ca.crt", "half a file");
    server.show(acceptor(&new.issue(&[HOST], P256), None));
    let client = {
        std::fs::remove_file(kubeconfig.write("ca.crt", "")).unwrap();
        kubeconfig.write("ca.crt", &new.certificate);
        let client = kubeconfig.connect().await.unwrap();
        kubeconfig.write("ca.crt", "half a file");
        client
    };
    assert_eq!(ask(&client).await, Ok("@".to_owned()));
}

/// A server, and a kubeconfig that trusts its authority.
async fn trusted() -> (Server, Kubeconfig) {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&[HOST], P256), None)).await;
    let kubeconfig = Kubeconfig::new(&server.url()).trusts(&authority.certificate);
    (server, kubeconfig)
}

/// Asks until this client is accepted, for so many seconds at most.
async fn accepted_within(seconds: u64, client: &kube::Client) {
    let accepted = async {
        while ask(client).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let accepted = timeout(Duration::from_secs(seconds), accepted).await;
    accepted.expect("the file is read, or the plugin run, after a 401");
}

/// A client whose pair is in files, and the server that it talks to.
async fn with_files(authority: &Authority) -> (Server, Kubeconfig, kube::Client) {
    let server = Server::start(acceptor(&authority.issue(&[HOST], P256), Some(authority))).await;
    let kubeconfig = Kubeconfig::new(&server.url()).trusts(&authority.certificate);
    let kubeconfig = kubeconfig.user("client-certificate", "tls.crt");
    let kubeconfig = kubeconfig.user("client-key", "tls.key");
    let one = authority.issue(&["one"], P256);
    kubeconfig.write("tls.crt", &one.certificate);
    kubeconfig.write("tls.key", &one.key);
    let client = kubeconfig.connect().await.unwrap();
    assert_eq!(ask(&client).await, Ok("one@".to_owned()));
    (server, kubeconfig, client)
}

#[tokio::test]
async fn a_client_certificate_that_is_replaced_is_used_over_a_new_connection() {
    let authority = Authority::new("root", P256);
    let (_server, kubeconfig, client) = with_files(&authority).await;
    let two = authority.issue(&["two"], P256);
    // Between the two pairs the one before them stays.
    kubeconfig.write("tls.crt", &two.certificate);
    assert_eq!(ask(&client).await, Ok("one@".to_owned()));
    kubeconfig.write("tls.key", &two.key);
    let replaced = async { while ask(&client).await != Ok("two@".to_owned()) {} };
    timeout(Duration::from_secs(20), replaced).await.unwrap();
}

#[tokio::test]
async fn after_a_401_the_client_certificate_is_read_at_once() {
    let authority = Authority::new("root", P256);
    let (server, kubeconfig, client) = with_files(&authority).await;
    let two = authority.issue(&["two"], P256);
    kubeconfig.write("tls.crt", &two.certificate);
    kubeconfig.write("tls.key", &two.key);
    server.refuse("one");
    assert!(ask(&client).await.is_err() || ask(&client).await == Ok("two@".to_owned()));
    assert_eq!(ask(&client).await, Ok("two@".to_owned()));
}

#[tokio::test]
async fn values_are_read_as_by_client_go() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&[HOST], P256), Some(&authority))).await;
    let me = authority.issue(&["me"], P256);
    // Ends of lines within base64, files that are not looked at, and values that are empty.
    let lines = |text: &str| {
        base64(text).as_bytes().chunks(64).fold(String::new(), |lines, line| {
            lines + std::str::from_utf8(line).unwrap() + "\n"
        })
    };
    let kubeconfig = Kubeconfig::new(&server.url())
        .cluster("certificate-authority", "/nowhere")
        .cluster(
            "certificate-authority-data",
            lines(&format!("# text\n{}", authority.certificate)),
        )
        .cluster("proxy-url", "")
        .user("client-certificate", "/nowhere")
        .user("client-certificate-data", lines(&me.certificate))
        .user("client-key-data", lines(&me.key));
    assert_eq!(ask(&kubeconfig.connect().await.unwrap()).await, Ok("me@".to_owned()));

    let kubeconfig = Kubeconfig::new(&server.url())
        .cluster("certificate-authority-data", "")
        .cluster("certificate-authority", "ca.crt")
        .user("client-certificate-data", "")
        .user("client-certificate", "")
        .user("client-key", "")
        .user("client-key-data", "");
    kubeconfig.write("ca.crt", &authority.certificate);
    assert_eq!(ask(&kubeconfig.connect().await.unwrap()).await, Ok("@".to_owned()));

    let kubeconfig = Kubeconfig::new(&server.url()).cluster("insecure-skip-tls-verify", true);
    assert_eq!(ask(&kubeconfig.connect().await.unwrap()).await, Ok("@".to_owned()));

    // A key alone is no client certificate.
    let kubeconfig = kubeconfig
        .user("client-certificate", "")
        .user("client-key-data", lines(&me.key))
        .user("token", "of-the-day");
    server.is_asked_by(&kubeconfig, "Bearer of-the-day").await;
}

/// This server takes none of the kind; those of clusters may.
#[tokio::test]
async fn a_client_certificate_is_for_the_server_to_judge() {
    let mut unknown = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 99], vec![5, 0]);
    unknown.set_criticality(true);
    let mut params = rcgen::CertificateParams::default();
    params.custom_extensions.push(unknown);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().pem();
    let kubeconfig = Kubeconfig::new("https://127.0.0.1:1")
        .trusts(&certificate)
        .user("client-certificate-data", base64(&certificate))
        .user("client-key-data", base64(&key.serialize_pem()));
    assert_eq!(kubeconfig.connect().await.err().map(|error| error.to_string()), None);
}

/// A plugin whose answer is this file.
fn plugin_that_shows(credential: &impl serde::Serialize) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": "cat", "args": [credential], "interactiveMode": "Never",
    })
}

/// A plugin whose answer is the file `credential`, for this client.
fn answer_of_plugin(kubeconfig: &Kubeconfig, pair: &Pair, expires_in: i64) {
    let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(expires_in);
    let answer = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {
            "clientCertificateData": pair.certificate, "clientKeyData": pair.key, "expirationTimestamp": expires.to_string(),
        },
    });
    kubeconfig.write("credential", &answer.to_string());
}

#[tokio::test]
async fn a_credential_plugin_is_run_again_before_its_certificate_ends_and_after_a_401() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&[HOST], P256), Some(&authority))).await;
    let kubeconfig = Kubeconfig::new(&server.url()).trusts(&authority.certificate);
    let credential = kubeconfig.write("credential", "");
    let kubeconfig = kubeconfig.user("exec", plugin_that_shows(&credential));
    answer_of_plugin(&kubeconfig, &authority.issue(&["one"], P256), 30);
    let client = kubeconfig.connect().await.unwrap();
    assert_eq!(ask(&client).await, Ok("one@".to_owned()));
    answer_of_plugin(&kubeconfig, &authority.issue(&["two"], P256), 3_600);
    let becomes = |name: &'static str| {
        let client = client.clone();
        let asked = async move {
            while ask(&client).await != Ok(name.to_owned()) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(20), asked)
    };
    becomes("two@").await.expect("it is run before the end");
    answer_of_plugin(&kubeconfig, &authority.issue(&["three"], P256), 3_600);
    // It is not run for each request.
    assert_eq!(ask(&client).await, Ok("two@".to_owned()));
    server.refuse("two");
    becomes("three@").await.expect("it is run after a 401");
}

/// What stands in the kubeconfig is of the day that it was written; the file is renewed.
#[tokio::test]
async fn a_token_in_a_file_goes_before_one_in_the_kubeconfig() {
    let (server, kubeconfig) = trusted().await;
    let kubeconfig = kubeconfig.user("token", "of-the-day").user("tokenFile", "token");
    // As an editor or `echo` leaves it.
    kubeconfig.write("token", " renewed\n");
    server.is_asked_by(&kubeconfig, "Bearer renewed").await;
    let kubeconfig = kubeconfig.user("tokenFile", "");
    server.is_asked_by(&kubeconfig, "Bearer of-the-day").await;
}

/// A token is replaced, and the old one is revoked.
#[tokio::test]
async fn after_a_401_the_token_is_read_again() {
    let (server, kubeconfig) = trusted().await;
    let kubeconfig = kubeconfig.user("tokenFile", "token");
    kubeconfig.write("token", "one");
    let client = kubeconfig.connect().await.unwrap();
    server.is_asked_with("Bearer one", &client).await;
    kubeconfig.write("token", "two");
    server.refuse("Bearer one");
    // Less than the renew deadline of a Lease.
    accepted_within(9, &client).await;
    assert_eq!(*server.authorization.lock(), "Bearer two");
}

/// A plugin that names no end of its token, as some of vendors do: the API server alone says when it has ended.
#[tokio::test]
async fn after_a_401_a_credential_plugin_is_asked_for_another_token() {
    let (server, kubeconfig) = trusted().await;
    let answer = |token: &str| serde_json::json!({"kind": "ExecCredential", "status": {"token": token}}).to_string();
    let credential = kubeconfig.write("credential", &answer("one"));
    let kubeconfig = kubeconfig.user("exec", plugin_that_shows(&credential));
    let client = kubeconfig.connect().await.unwrap();
    server.is_asked_with("Bearer one", &client).await;
    kubeconfig.write("credential", &answer("two"));
    // It is not run for each request.
    server.is_asked_with("Bearer one", &client).await;
    server.refuse("Bearer one");
    accepted_within(20, &client).await;
    assert_eq!(*server.authorization.lock(), "Bearer two");
}

/// As a plugin prints what it does not have. One that has nothing is run again, and is not taken for one without credentials.
#[tokio::test]
async fn an_empty_value_of_a_credential_plugin_is_none() {
    let (server, kubeconfig) = trusted().await;
    let answer = |token: &str| {
        let status = serde_json::json!({"token": token, "clientCertificateData": "", "clientKeyData": ""});
        serde_json::json!({"kind": "ExecCredential", "status": status}).to_string()
    };
    let credential = kubeconfig.write("credential", &answer("one"));
    let kubeconfig = kubeconfig.user("exec", plugin_that_shows(&credential));
    server.is_asked_by(&kubeconfig, "Bearer one").await;
    kubeconfig.write("credential", &answer(""));
    let error = kubeconfig.connect().await.err().unwrap().to_string();
    says(&error, "gave neither a token nor a client certificate");
}

#[tokio::test]
async fn an_empty_user_name_leaves_the_token() {
    let (server, kubeconfig) = trusted().await;
    let kubeconfig = kubeconfig.user("username", "").user("password", "").user("token", "t");
    server.is_asked_by(&kubeconfig, "Bearer t").await;
}

/// As client-go does, whatever CA data there is. Requests of kube panic without a scheme.
#[tokio::test]
async fn a_server_without_a_scheme_is_asked_over_http_without_credentials() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let head = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert_ne!(tcp.read_buf(&mut head).await.unwrap(), 0, "the request ended");
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        tcp.write_all(answer).await.unwrap();
        String::from_utf8(head).unwrap()
    });
    let authority = Authority::new("root", P256);
    let kubeconfig = Kubeconfig::new(&address.to_string()).trusts(&authority.certificate);
    let client = kubeconfig.user("token", "s3cret").connect().await.unwrap();
    assert_eq!(ask(&client).await, Ok("{}".to_owned()));
    let head = head.await.unwrap();
    assert!(head.starts_with("GET /version HTTP/1.1\r\n"), "{head}");
    assert!(!head.to_ascii_lowercase().contains("authorization"), "{head}");
}

#[tokio::test]
#[allow(clippy::too_many_lines, reason = "a table")]
async fn what_is_wrong_with_a_kubeconfig_is_said_without_its_secrets() {
    let authority = Authority::new("root", P256);
    let (me, other) = (authority.issue(&["me"], P256), authority.issue(&["other"], P256));
    let secret = "c2VjcmV0LWNhbmFyeQ";
    let at = || Kubeconfig::new("https://127.0.0.1:1");
    for (kubeconfig, words) in [
        (
            at().cluster("certificate-authority", "/nowhere"),
            "certificate-authority /nowhere: No such file",
        ),
        (
            at().cluster("certificate-authority-data", "%"),
            "certificate-authority-data of the kubeconfig is not base64",
        ),
        (
            at().trusts("nothing"),
            "certificate-authority-data of the kubeconfig holds no certificate in PEM form",
        ),
        (
            at().trusts(authority.certificate.trim_end_matches('\n').trim_end_matches('-')),
            "certificate-authority-data of the kubeconfig is cut off",
        ),
        (
            at().is(&me).user("client-key-data", ""),
            "has client-certificate but no client-key",
        ),
        (
            at().is(&me).user("client-key-data", format!("{secret}%")),
            "client-key-data of the kubeconfig is not base64",
        ),
        (
            at().is(&me).user("client-key-data", base64(secret)),
            "client-key of the kubeconfig holds no private key",
        ),
        (
            at().is(&me).user("client-key-data", base64(&other.key)),
            "is not the key of the first certificate",
        ),
        (
            at().trusts(&authority.certificate).user(
                "auth-provider",
                serde_json::json!({
                    "name": "gcp", "config": { "cmd-path": "cat", "cmd-args": format!("/nowhere/{secret}") },
                }),
            ),
            "the command that gives credentials ended with exit status: 1",
        ),
        (
            at().user("token", secret).user("tokenFile", "/nowhere"),
            "tokenFile /nowhere of the kubeconfig: No such file",
        ),
        (
            at().cluster("proxy-url", format!("ftp://me:{secret}@proxy:21")),
            "proxy-url of the kubeconfig has an unsupp",
        ),
        (
            at().cluster("proxy-url", format!("me:{secret}@proxy")),
            "proxy-url of the kubeconfig is not the URL of a proxy",
        ),
    ] {
        let kubeconfig = kubeconfig.cluster("name", "c");
        let Err(error) = kubeconfig.connect().await else {
            panic!("accepted: {words}")
        };
        let error = format!("{error} {error:?}");
        says(&error, words);
        assert!(!error.contains(secret) && !error.contains(&base64(secret)), "{error}");
    }
}

/// The URL is shown in logs, in the label `host` of metrics, and by `/readyz` without a login.
#[tokio::test]
async fn user_and_password_of_the_url_are_neither_kept_nor_sent() {
    let authority = Authority::new("root", P256);
    let server = Server::start(acceptor(&authority.issue(&[HOST], P256), None)).await;
    let url = server.url().replace("https://", "https://me:s3cret-canary@");
    let kubeconfig = Kubeconfig::new(&url).trusts(&authority.certificate);
    let config = kubeconfig.load().await.unwrap();
    assert_eq!(config.cluster_url.to_string(), format!("{}/", server.url()));
    let metrics = Metrics::default();
    let client = connect_counted(&config, None, &metrics).unwrap();
    server.is_asked_with("", &client).await;
    let text = metrics.encode_prometheus();
    let host = format!("host=\"{}\"", server.address);
    assert!(text.contains(&host) && !text.contains("canary"), "{text}");
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_or_refuses_us_is_named_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let words = b"HTTP/1.1 400 Bad Request\r\n\r\n";
            drop(tcp.write_all(words).await);
        }
    });
    let authority = Authority::new("root", P256);
    let kubeconfig = Kubeconfig::new(&format!("https://{address}")).trusts(&authority.certificate);
    let error = ask(&kubeconfig.connect().await.unwrap()).await.unwrap_err();
    says(&error, "does not speak TLS on this port");
}

//! Requests to an application and its responses, addressed by host name and by headers, with HTTP/1.1 and
//! HTTP/2.

use api::ErrorCode;
use api::ports::PutPort;
use e2e::service::Service;

use super::ground::{Application, asked, curl, on_each_tier};

fn by_header<'a>(service: &Service, sandbox: &'a str, port: &'a str) -> Vec<String> {
    let mut words = vec!["-H".to_owned(), format!("authorization: Bearer {}", service.key)];
    for (name, value) in [("bellglass-sandbox", sandbox), ("bellglass-port", port)] {
        words.extend(["-H".to_owned(), format!("{name}: {value}")]);
    }
    words
}

fn words(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_port_is_reached_by_name_with_a_token_and_by_headers_with_a_key() {
    // With both HTTP versions, the application gets the client's own headers and none of Bellglass's
    // credentials.
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let (id, host) = (application.sandbox.id.as_str(), application.host(8000));
        let more = ["-H", "authorization: Basic of-the-application", "-H", "x-forwarded-for: 6.6.6.6"];
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let arguments = [more.as_slice(), &[version, "-b", "mine=1; bellglass=x"]].concat();
            let seen = application.text("/headers?a=b%20c", &arguments).to_lowercase();
            assert!(seen.starts_with("get /headers?a=b%20c\n"), "{seen}");
            for line in [
                &format!("host: {host}"),
                &format!("x-forwarded-host: {host}"),
                "x-forwarded-for: 127.0.0.1",
                "x-forwarded-proto: http",
                "authorization: basic of-the-application",
                "cookie: mine=1",
            ] {
                assert!(seen.lines().any(|seen| seen == line), "{version}: no {line:?} in {seen}");
            }
            assert!(!seen.contains("bellglass-") && !seen.contains(&application.port.token), "{seen}");
            let mut arguments = by_header(service, id, "8000");
            arguments.push(version.to_owned());
            let (status, seen) = asked(&format!("{}/headers", service.url()), &words(&arguments));
            assert_eq!(status, 200);
            assert!(seen.to_lowercase().contains("host: localhost:8000"), "{seen}");
            assert!(!seen.contains(&service.key) && !seen.contains("bellglass"), "a key went in: {seen}");
        }
        // The application may use any method and any status. Only the header `bellglass-error` marks an error
        // from Bellglass.
        for method in ["GET", "DELETE", "PATCH", "OPTIONS"] {
            let output = application.curl("/teapot", &["-i", "-X", method]);
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(text.starts_with("HTTP/1.1 418 ") && text.ends_with("no coffee"), "{text}");
            assert!(text.contains("set-cookie: a=1") && !text.contains("bellglass-error"), "{text}");
        }
        let head = String::from_utf8(application.curl("/teapot", &["-I"]).stdout).unwrap();
        assert!(head.contains("content-length: 9"), "{head}");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn where_nothing_listens_the_error_says_what_to_start() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let (url, token) = (
            format!("http://{}/", application.host(8001)),
            format!("bellglass-token: {}", application.port.token),
        );
        let output = curl(&url, &["-i", "-H", &token]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("HTTP/1.1 502 ") && text.contains("bellglass-error: not_found"), "{text}");
        assert!(text.contains("Start a server on port 8001 in the sandbox"), "{text}");
        let refused = application.client.tunnel(&application.sandbox.id, 8001).await.err().unwrap();
        assert_eq!(refused.code(), Some(ErrorCode::NotFound));
        // The error distinguishes a port that listens but does not speak HTTP from a closed port.
        let (status, body) = asked(&format!("http://{}/", application.host(9001)), &["-H", &token]);
        assert_eq!(status, 502, "{body}");
        assert!(body.contains("\"protocol\""), "{body}");
        // gRPC requires HTTP/2, so the request is forwarded over HTTP/2.
        let grpc = [
            "--http2-prior-knowledge",
            "-H",
            "content-type: application/grpc",
            "-H",
            "te: trailers",
            "-d",
            "x",
        ];
        let (status, _) = asked(
            &format!("http://{}/", application.host(9001)),
            &[&["-H", token.as_str()], grpc.as_slice()].concat(),
        );
        assert_eq!(status, 502);
        let greeted = application.text("/greeting", &[]);
        assert!(greeted.starts_with("GET / HTTP/1.1\r\n"), "{greeted}");
        assert!(greeted.ends_with("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "{greeted}");
    });
}

#[test]
#[ignore = "starts real sandboxes"]
fn a_port_is_private_until_it_is_made_public_and_again_afterwards() {
    on_each_tier(async |service, tier| {
        let application = Application::start(service, tier).await;
        let url = format!("{}/headers", application.port.url);
        let id = &application.sandbox.id;
        assert_eq!(asked(&url, &[]).0, 401);
        let open = application.client.put_port(id, 8000, &PutPort { public: true }).await.unwrap();
        assert!(open.public && open.token == application.port.token);
        assert_eq!(asked(&url, &[]).0, 200);
        // A key that the client sends to the API is not forwarded to the application, even if the port is
        // public.
        let arguments = by_header(service, id.as_str(), "8000");
        let (status, seen) = asked(&format!("{}/headers", service.url()), &words(&arguments));
        assert!(status == 200 && !seen.contains(&service.key), "{seen}");
        let mut arguments = by_header(service, id.as_str(), "8000");
        arguments[1] = "authorization: Bearer wrong".into();
        assert_eq!(asked(&format!("{}/headers", service.url()), &words(&arguments)).0, 401);
        // The setting is persistent, so it survives a restart.
        service.kill();
        service.begin();
        assert_eq!(asked(&url, &[]).0, 200);
        let client = service.client();
        assert!(!client.put_port(id, 8000, &PutPort { public: false }).await.unwrap().public);
        assert_eq!(asked(&url, &[]).0, 401);
        let log = std::fs::read_to_string(service.data().join("audit.log")).unwrap();
        assert!(log.contains("8000 public") && log.contains("8000 private"), "{log}");
    });
}

//! Exports a file system in memory over NFS version 3, for tests: nfs3-server ADDRESS
use nfs3_server::memfs::{MemFs, MemFsConfig};
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: nfs3-server ADDRESS")?;
    let files = MemFs::new(MemFsConfig::default()).map_err(|status| format!("{status:?}"))?;
    let listener = NFSTcpListener::bind(&address, files).await?;
    println!("listening on {}:{}", listener.get_listen_ip(), listener.get_listen_port());
    listener.handle_forever().await?;
    Ok(())
}

# Makes an archive out of another: `SOURCE TARGET FORM NAME…`. It has one layer more, with the file /etc/owned, and claims names.
#   keys        as `docker save`, with the names under a key that Go obeys and others do not see
#   annotation  as an OCI layout, with the names in annotations
#   links       as `docker save`, without names; its layer has `/workspace -> /etc` besides
import hashlib, io, json, sys, tarfile

source, target, form, *names = sys.argv[1:]


def digest(data):
    return hashlib.sha256(data).hexdigest()


def layer():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("etc/owned")
        member.size = 6
        archive.addfile(member, io.BytesIO(b"owned\n"))
        if form == "links":
            link = tarfile.TarInfo("workspace")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc"
            archive.addfile(link)
    return out.getvalue()


with tarfile.open(source) as given:
    saved = json.load(given.extractfile("manifest.json"))[0]
    config = json.load(given.extractfile(saved["Config"]))
    extra = layer()
    config["rootfs"]["diff_ids"].append("sha256:" + digest(extra))
    config = json.dumps(config).encode()
    with tarfile.open(target, "w") as out:
        def add(name, data):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            out.addfile(member, io.BytesIO(data))

        layers = []
        for name in saved["Layers"]:
            data = given.extractfile(name).read()
            layers.append(("blobs/sha256/" + digest(data), data))
        layers.append(("blobs/sha256/" + digest(extra), extra))
        for name, data in [*layers, ("blobs/sha256/" + digest(config), config)]:
            add(name, data)
        if form == "annotation":
            kind = "application/vnd.oci.image."
            part = lambda sort, data: {"mediaType": kind + sort, "digest": "sha256:" + digest(data), "size": len(data)}
            manifest = json.dumps({
                "schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
                "config": part("config.v1+json", config), "layers": [part("layer.v1.tar", data) for _, data in layers],
            }).encode()
            add("blobs/sha256/" + digest(manifest), manifest)
            described = part("manifest.v1+json", manifest)
            claims = [{**described, "annotations": {"org.opencontainers.image.ref.name": name}} for name in names]
            add("index.json", json.dumps({"schemaVersion": 2, "manifests": claims}).encode())
            add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        else:
            image = {"Config": "blobs/sha256/" + digest(config), "RepoTags": None, "Layers": [name for name, _ in layers]}
            if form == "keys":
                image["RepoTags"] = ["harmless:1"]
                image["repoTags"] = names
            add("manifest.json", json.dumps([image]).encode())

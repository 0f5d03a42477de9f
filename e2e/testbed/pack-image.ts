import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, rename, stat, writeFile } from 'node:fs/promises';
import { arch } from 'node:os';
import { join } from 'node:path';
import type { Run } from './component.ts';
import type { ImageConfig } from './dockerfile.ts';

export interface ImageContents {
  /** The folder that becomes the image's only layer. */
  readonly root: string;
  /** The name with its tag. */
  readonly name: string;
  /** As in the OCI image specification. */
  readonly config: Partial<ImageConfig>;
  /** A folder with enough space. The tar stays in it. */
  readonly work: string;
  readonly run: Run;
}

/** Makes one tar that is both an OCI image layout and the format of `docker save`. */
export async function pack({ root, name, config, work, run }: ImageContents): Promise<string> {
  const layout = join(work, 'layout');
  const blobs = join(layout, 'blobs', 'sha256');
  await mkdir(blobs, { recursive: true });
  const file = join(work, 'layer.tar');
  const reproducible = ['--sort=name', '--mtime=@0', '--numeric-owner'];
  await run('tar', [...reproducible, '-C', root, '-cf', file, '.']);
  const layer = await sha256(file);
  const { size } = await stat(file);
  await rename(file, join(blobs, layer));
  const putBlob = async (value: object): Promise<{ readonly digest: string; readonly size: number }> => {
    const bytes = Buffer.from(JSON.stringify(value));
    const hex = createHash('sha256').update(bytes).digest('hex');
    await writeFile(join(blobs, hex), bytes);
    return { digest: `sha256:${hex}`, size: bytes.length };
  };
  const mediaType = (what: string): string => `application/vnd.oci.image.${what}`;
  const image = await putBlob({
    created: '1970-01-01T00:00:00Z',
    architecture: arch() === 'x64' ? 'amd64' : arch(),
    os: 'linux',
    config,
    rootfs: { type: 'layers', diff_ids: [`sha256:${layer}`] },
    history: [{ created: '1970-01-01T00:00:00Z', created_by: 'stowage test bed' }],
  });
  const manifest = await putBlob({
    schemaVersion: 2,
    mediaType: mediaType('manifest.v1+json'),
    config: { mediaType: mediaType('config.v1+json'), ...image },
    layers: [{ mediaType: mediaType('layer.v1.tar'), digest: `sha256:${layer}`, size }],
  });
  const annotations = {
    'io.containerd.image.name': `docker.io/library/${name}`,
    'org.opencontainers.image.ref.name': name.split(':')[1],
  };
  const json = (file: string, value: unknown): Promise<void> => writeFile(join(layout, file), JSON.stringify(value));
  await json('oci-layout', { imageLayoutVersion: '1.0.0' });
  await json('index.json', {
    schemaVersion: 2,
    manifests: [{ mediaType: mediaType('manifest.v1+json'), ...manifest, annotations }],
  });
  const inBlobs = (blob: string): string => `blobs/sha256/${blob.replace('sha256:', '')}`;
  await json('manifest.json', [{ Config: inBlobs(image.digest), RepoTags: [name], Layers: [inBlobs(layer)] }]);
  const tar = join(work, 'image.tar');
  await run('tar', [...reproducible, '--owner=0', '--group=0', '-C', layout, '-cf', tar, '.']);
  return tar;
}

async function sha256(file: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(chunk as Buffer);
  return hash.digest('hex');
}

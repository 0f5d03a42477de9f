import { existsSync } from 'node:fs';
import { copyFile, cp, mkdir, mkdtempDisposable, readdir, readFile, rename, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { cacheFolder, onPath, type Run, repository } from './component.ts';
import { lastStage, type Step } from './dockerfile.ts';
import { slaveMounts } from './mount-namespace.ts';
import { pack } from './pack-image.ts';
import { digest, rootfs } from './rootfs.ts';
import { runner } from './run.ts';

/** Increased when the build of the image changes. */
const formatVersion = 1;
/** A parallel run may still be loading an image that is younger than this. */
const minUnusedAgeMs = 15 * 60_000;

export const imageName = 'stowage:testbed';

/**
 * Builds the image of deploy/Dockerfile without a registry: packages from Debian, this machine's Node, and the Dockerfile's commands
 * in the new root. Returns a tar for `docker load`, `podman load` and `ctr images import`, which is cached by its content.
 */
export async function buildImage(signal: AbortSignal): Promise<string> {
  const run = runner(signal);
  await using work = await mkdtempDisposable(join(tmpdir(), 'stowage-image-'));
  const dockerfile = await readFile(join(repository, 'deploy', 'Dockerfile'), 'utf8');
  const stage = lastStage(dockerfile);
  const bundleFolder = join(work.path, 'dist');
  await run(process.execPath, [join(repository, 'scripts', 'build.ts'), bundleFolder]);
  const bundles = await Promise.all(
    (await readdir(bundleFolder)).sort().map((name) => readFile(join(bundleFolder, name), 'utf8')),
  );
  await cp(join(repository, 'bin'), join(work.path, 'bin'), { recursive: true });
  const wrapper = await readFile(join(repository, 'bin', 'stowage'), 'utf8');
  const base = await rootfs(stage.packages, run);
  const key = digest(`${formatVersion}`, base.key, dockerfile, ...bundles, wrapper, process.version);
  const tar = join(cacheFolder(), `image-${key}.tar`);
  if (existsSync(tar)) return tar;
  const root = join(work.path, 'root');
  await mkdir(root);
  await run('tar', ['-xf', base.tar, '-C', root, '--numeric-owner']);
  await mkdir(join(root, 'usr/local/bin'), { recursive: true });
  await copyFile(process.execPath, join(root, 'usr/local/bin/node'));
  for (const step of stage.steps) await applyStep(step, root, work.path, run);
  const partialTar = await pack({ root, name: imageName, config: stage.config, work: work.path, run });
  await removeOldImages();
  await cp(partialTar, `${tar}.${process.pid}`);
  await rename(`${tar}.${process.pid}`, tar);
  return tar;
}

async function applyStep(step: Step, root: string, work: string, run: Run): Promise<void> {
  switch (step.kind) {
    case 'run': {
      // In a PID namespace, so that no process of a command survives.
      const namespaces = [...slaveMounts, '--pid', '--fork', '--kill-child'];
      await run(onPath('unshare') ?? 'unshare', [...namespaces, 'chroot', root, '/bin/sh', '-ec', step.command]);
      return;
    }
    case 'copy': {
      const to = join(root, step.to);
      await mkdir(dirname(to), { recursive: true });
      await cp(join(work, step.from), to, { recursive: true });
      return;
    }
    default:
      return step satisfies never;
  }
}

/** Removes old images, because every change of the program creates a new image of more than 200 MB. */
async function removeOldImages(): Promise<void> {
  const names = (await readdir(cacheFolder())).filter((name) => name.startsWith('image-'));
  for (const name of names) {
    const path = join(cacheFolder(), name);
    if ((await stat(path)).mtimeMs < Date.now() - minUnusedAgeMs) await rm(path, { force: true });
  }
}

import { expect, test } from 'vitest';
import { newVolumeId, volumeName } from '#core/names.ts';
import { startGoNfs } from '#testbed/go-nfs.ts';
import { startRustNfs } from '#testbed/nfs3-server.ts';
import { scope } from '#testing/contracts/store.ts';
import { contentsOf, quickFolder, wrongRecords } from '#testing/nfs-contents.ts';
import { openNfs } from '#testing/nfs-store.ts';

for (const which of ['go', 'rust'])
test(which, async () => {
  const folder = quickFolder('probe');
  await using server = which === 'go' ? await startGoNfs({ path: folder, signal: scope.signal }) : await startRustNfs(scope.signal);
  const options = { port: `${server.nfsPort}`, mountport: `${server.mountPort}` };
  const stores = await Promise.all(Array.from({ length: 8 }, (_, i) => openNfs({ uri: `nfs://${server.host}/`, options, instance: `h${i}` })));
  console.log(which, 'identities', new Set(stores.map((s) => s.identity)).size);
  const count: Record<string, number> = {};
  for (let round = 0; round < 40; round++) {
    const r = await Promise.allSettled(stores.map((s, i) => s.create({ id: newVolumeId(), name: volumeName(`v${round}`), bytes: undefined, access: 'filesystem', labels: {}, requestId: `${round} ${i}`, createdAt: 0, instance: `h${i}` }, scope)));
    const told = r.map((x) => x.status === 'fulfilled' ? 'done' : (x.reason.reason + (x.reason.reason==='internal'||x.reason.code==='unavailable' ? x.reason.message : '')));
    const done = told.filter((x) => x === 'done').length;
    count[`winners ${done}`] = (count[`winners ${done}`] ?? 0) + 1;
    for (const t of told) count[t] = (count[t] ?? 0) + 1;
  }
  console.log(which, count);
  const made = await stores[0]!.create({ id: newVolumeId(), name: volumeName(`same`), bytes: undefined, access: 'filesystem', labels: {}, requestId: `x`, createdAt: 0, instance: `h` }, scope);
  const revs = await Promise.allSettled(stores.map(async (s, i) => { const o = []; for (let k = 0; k < 4; k++) o.push((await s.label(made, { [`${i}`]: `${k}` }, scope)).revision); return o; }));
  console.log(which, 'revision', (await stores[0]!.get(made.name, scope))?.volume.revision, revs.filter((r) => r.status === 'rejected').map((r: any) => r.reason.message));
  for (const s of stores) await s.close();
}, 60000);

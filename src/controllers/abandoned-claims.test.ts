import { readdirSync, writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { aClaim, aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import type { AnyObject } from '#testing/fakes/kube-objects.ts';
import { events, persistentVolumes } from '#wire/kube/resources.ts';
import type { Controller } from './machinery/controller.ts';
import { createProvisioning } from './provisioning.ts';

const fixture = controllerFixture();
const listPersistentVolumes = () => fixture.list(persistentVolumes);

describe('a claim', () => {
  test('that is deleted while its volume is created leaves no volume behind', async () => {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    let refused = 0;
    fixture.api.intercept = ({ method, url }, response) => {
      if (method !== 'POST' || url !== paths.volumes) return false;
      refused++;
      fixture.api.refuse(response, 500, 'InternalError');
      return true;
    };
    fixture.start(createProvisioning);
    await eventually(() => refused).toBeGreaterThan(0);
    expect(await fixture.volumes()).toHaveLength(1);
    fixture.api.remove(paths.claims, 'cart');
    await eventually(() => fixture.volumes()).toEqual([]);
    expect(await listPersistentVolumes()).toEqual([]);
  });

  /** Starts the controller, which creates the volume. The API server refuses the PersistentVolume, as a webhook can do. */
  async function startAndRefuse(name: string): Promise<Controller> {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim(name));
    let refused = 0;
    fixture.api.intercept = ({ method, url }, response) => {
      if (method !== 'POST' || url !== paths.volumes) return false;
      refused++;
      fixture.api.refuse(response, 400, 'Invalid');
      return true;
    };
    const controller = fixture.start(createProvisioning);
    await eventually(() => refused).toBeGreaterThan(0);
    expect(await fixture.volumes()).toHaveLength(1);
    return controller;
  }
  const cleanupReads = (): number =>
    fixture.api.requests.filter((one) => one === `GET ${paths.volumes}/pvc-uid-of-cart`).length;

  test.each([
    ['id', 'in the cache'],
    ['store and name', 'in the cache'],
    ['id', 'only on the API server'],
    ['store and name', 'only on the API server'],
  ])(
    'keeps its volume if a user wrote a PersistentVolume that refers to it by %s and is %s',
    async (handleKind, knownTo) => {
      const controller = await startAndRefuse('cart');
      const [volume] = await fixture.volumes();
      const csi = {
        driver: 'file.stowage.dev',
        volumeHandle: handleKind === 'id' ? (volume?.id ?? '') : 'silver..pvc-uid-of-cart',
      };
      const claimRef = { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' };
      const persistentVolume = { metadata: { name: 'by-hand' }, spec: { storageClassName: 'fast', claimRef, csi } };
      const isInCache = knownTo === 'in the cache';
      if (isInCache) fixture.api.put(paths.volumes, persistentVolume);
      else
        fixture.api.intercept = ({ method, url = '' }, response) => {
          if (method !== 'GET' || !url.startsWith(`${paths.volumes}?limit`)) return false;
          const list = { kind: 'List', metadata: { resourceVersion: '100' }, items: [persistentVolume] };
          response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
          return true;
        };
      await eventually(() => fixture.caches.volumes.get('by-hand') !== undefined).toBe(isInCache);
      fixture.api.put(paths.claims, aClaim('cart', { volumeName: 'by-hand' }));
      await eventually(cleanupReads).toBe(1);
      await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
      expect(await fixture.volumes()).toEqual([volume]);
      expect(readdirSync(fixture.silverFolder)).toContain('pvc-uid-of-cart');
    },
  );

  test('that was deleted leaves its volume behind if the volume has data', async () => {
    const controller = await startAndRefuse('cart');
    writeFileSync(join(fixture.silverFolder, 'pvc-uid-of-cart', 'file'), 'x');
    fixture.api.remove(paths.claims, 'cart');
    await eventually(cleanupReads).toBe(1);
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(readdirSync(join(fixture.silverFolder, 'pvc-uid-of-cart'))).toEqual(['file']);
  });

  test('that was deleted gets no second cleanup after its volume was deleted', async () => {
    const controller = await startAndRefuse('cart');
    fixture.api.remove(paths.claims, 'cart');
    await eventually(() => fixture.volumes()).toEqual([]);
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    fixture.api.put(paths.claims, aClaim('cart', { volumeName: 'by-hand' }));
    await eventually(() => fixture.caches.claims.get('shop/cart')).toBeDefined();
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(cleanupReads()).toBe(1);
  });

  test('keeps its volume if the claim is missing only in the cache', async () => {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    let refused = 0;
    let isDeleted = false;
    fixture.api.intercept = ({ method, url = '' }, response) => {
      if (method === 'GET' && isDeleted && url === `${paths.claims}/cart`) {
        response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(aClaim('cart')));
        return true;
      }
      if (method !== 'POST' || url !== paths.volumes) return false;
      refused++;
      fixture.api.refuse(response, 500, 'InternalError');
      return true;
    };
    const controller = fixture.start(createProvisioning);
    await eventually(() => refused).toBeGreaterThan(0);
    isDeleted = true;
    fixture.api.remove(paths.claims, 'cart');
    await eventually(
      () => fixture.api.requests.filter((one) => one === `GET ${paths.claims}/cart`).length,
    ).toBeGreaterThan(0);
    await eventually(() => controller.counts().running).toBe(0);
    expect(await fixture.volumes()).toHaveLength(1);
  });

  test('gets no volume while the cleanup checks whether the claim still exists', async () => {
    const controller = await startAndRefuse('cart');
    const claimRead = Promise.withResolvers<ServerResponse>();
    fixture.api.intercept = ({ method, url }, response) => {
      if (method !== 'GET' || url !== `${paths.claims}/cart`) return false;
      claimRead.resolve(response);
      return true;
    };
    fixture.api.remove(paths.claims, 'cart');
    const response = await claimRead.promise;
    const { again } = controller.counts();
    fixture.api.put(paths.claims, aClaim('cart'));
    await eventually(() => controller.counts().again).toBe(again + 1);
    expect(await listPersistentVolumes()).toEqual([]);
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(aClaim('cart')));
    await eventually(async () => (await listPersistentVolumes()).length).toBe(1);
    expect(await fixture.volumes()).toHaveLength(1);
  });
});

describe('a claim with the same name as a deleted claim', () => {
  const secondClaim = (): AnyObject => aClaim('cart', {}, { uid: 'uid-of-second' });
  const failedClaimUids = async (): Promise<readonly (string | undefined)[]> =>
    (await fixture.list(events))
      .filter(({ reason }) => reason === 'ProvisioningFailed')
      .map(({ regarding }) => regarding.uid);
  const isFirstVolume = (body: string): boolean => body.includes('"pvc-uid-of-cart"');

  test('waits neither for the cleanup of the deleted claim nor for its backoff', async () => {
    fixture.api.put(paths.classes, aClass());
    fixture.api.put(paths.claims, aClaim('cart'));
    const volumeWrite = Promise.withResolvers<ServerResponse>();
    fixture.api.intercept = ({ method, url }, response, body) => {
      if (method !== 'POST' || url !== paths.volumes || !isFirstVolume(body)) return false;
      volumeWrite.resolve(response);
      return true;
    };
    const controller = fixture.start(createProvisioning);
    const response = await volumeWrite.promise;
    fixture.api.remove(paths.claims, 'cart');
    // The cleanup finds the volume, and waits while the creation is in progress.
    await eventually(() => controller.counts().done).toBe(1);
    expect(await fixture.volumes()).toMatchObject([{ name: 'pvc-uid-of-cart' }]);
    fixture.api.put(paths.claims, secondClaim());
    await eventually(() => fixture.caches.claims.get('shop/cart')?.metadata.uid).toBe('uid-of-second');
    fixture.api.refuse(response, 400, 'Invalid');
    await eventually(async () => (await listPersistentVolumes()).map(({ metadata }) => metadata.name)).toEqual([
      'pvc-uid-of-second',
    ]);
    await eventually(async () => (await fixture.volumes()).map(({ name }) => name)).toEqual(['pvc-uid-of-second']);
    await eventually(() => fixture.notes('ProvisioningSucceeded')).toHaveLength(1);
    expect(await failedClaimUids()).toEqual([]);
  });

  test('gets the same volume name as soon as the first volume is deleted', async () => {
    fixture.api.put(
      paths.classes,
      aClass('fast', { parameters: { store: 'silver', nameTemplate: '{namespace}-{name}' } }),
    );
    fixture.api.put(paths.claims, aClaim('cart'));
    let isSilent = true;
    fixture.api.intercept = ({ method, url }, response, body) => {
      const isCleanupRead = method === 'GET' && url === `${paths.volumes}/pvc-uid-of-cart` && isSilent;
      if (isCleanupRead) fixture.api.refuse(response, 503, 'ServiceUnavailable', { headers: { 'retry-after': '1' } });
      else if (method === 'POST' && url === paths.volumes && isFirstVolume(body))
        fixture.api.refuse(response, 400, 'Invalid');
      else return false;
      return true;
    };
    const controller = fixture.start(createProvisioning);
    await eventually(failedClaimUids).toEqual(['uid-of-cart']);
    const { terminal } = controller.counts();
    fixture.api.remove(paths.claims, 'cart');
    fixture.api.put(paths.claims, secondClaim());
    await eventually(failedClaimUids).toEqual(['uid-of-cart', 'uid-of-second']);
    expect((await fixture.notes('ProvisioningFailed')).at(-1)).toContain('shop-cart');
    expect(controller.counts().terminal).toBe(terminal + 1);
    expect(await fixture.volumes()).toMatchObject([{ name: 'shop-cart', requestId: 'uid-of-cart' }]);
    isSilent = false;
    await eventually(async () => (await listPersistentVolumes()).map(({ metadata }) => metadata.name)).toEqual([
      'pvc-uid-of-second',
    ]);
    expect(await fixture.volumes()).toMatchObject([{ name: 'shop-cart', requestId: 'uid-of-second' }]);
  });
});

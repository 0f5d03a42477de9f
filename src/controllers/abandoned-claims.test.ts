import { readdirSync, writeFileSync } from 'node:fs';
import type { ServerResponse } from 'node:http';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { aClaim, aClass, controllerFixture, eventually, paths } from '#testing/controller-fixture.ts';
import type { AnyObject } from '#testing/fakes/kube-objects.ts';
import { events, persistentVolumes } from '#wire/kube/resources.ts';
import type { Controller } from './machinery/controller.ts';
import { createProvisioning } from './provisioning.ts';

const it = controllerFixture();
const made = () => it.list(persistentVolumes);

describe('a claim', () => {
  test('that is deleted while its volume is created leaves no volume behind', async () => {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    let refused = 0;
    it.api.intercept = ({ method, url }, response) => {
      if (method !== 'POST' || url !== paths.volumes) return false;
      refused++;
      it.api.refuse(response, 500, 'InternalError');
      return true;
    };
    it.start(createProvisioning);
    await eventually(() => refused).toBeGreaterThan(0);
    expect(await it.volumes()).toHaveLength(1);
    it.api.remove(paths.claims, 'cart');
    await eventually(() => it.volumes()).toEqual([]);
    expect(await made()).toEqual([]);
  });

  /** The controller creates the volume, and the API server refuses the PersistentVolume, as a webhook can do. */
  async function refusedOnce(name: string): Promise<Controller> {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim(name));
    let refused = 0;
    it.api.intercept = ({ method, url }, response) => {
      if (method !== 'POST' || url !== paths.volumes) return false;
      refused++;
      it.api.refuse(response, 400, 'Invalid');
      return true;
    };
    const controller = it.start(createProvisioning);
    await eventually(() => refused).toBeGreaterThan(0);
    expect(await it.volumes()).toHaveLength(1);
    return controller;
  }
  const looks = (): number => it.api.requests.filter((one) => one === `GET ${paths.volumes}/pvc-uid-of-cart`).length;

  test.each([
    ['id', 'as the cache knows'],
    ['store and name', 'as the cache knows'],
    ['id', 'as only the API server knows'],
    ['store and name', 'as only the API server knows'],
  ])('keeps a volume that a user bound to it by hand by its %s, %s', async (by, who) => {
    const controller = await refusedOnce('cart');
    const [volume] = await it.volumes();
    const csi = {
      driver: 'file.stowage.dev',
      volumeHandle: by === 'id' ? (volume?.id ?? '') : 'silver..pvc-uid-of-cart',
    };
    const claimRef = { namespace: 'shop', name: 'cart', uid: 'uid-of-cart' };
    const written = { metadata: { name: 'by-hand' }, spec: { storageClassName: 'fast', claimRef, csi } };
    const isTold = who === 'as the cache knows';
    if (isTold) it.api.put(paths.volumes, written);
    else
      it.api.intercept = ({ method, url = '' }, response) => {
        if (method !== 'GET' || !url.startsWith(`${paths.volumes}?limit`)) return false;
        const list = { kind: 'List', metadata: { resourceVersion: '100' }, items: [written] };
        response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(list));
        return true;
      };
    await eventually(() => it.caches.volumes.get('by-hand') !== undefined).toBe(isTold);
    it.api.put(paths.claims, aClaim('cart', { volumeName: 'by-hand' }));
    await eventually(looks).toBe(1);
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(await it.volumes()).toEqual([volume]);
    expect(readdirSync(it.silver)).toContain('pvc-uid-of-cart');
  });

  test('that was deleted leaves its volume behind if the volume has data', async () => {
    const controller = await refusedOnce('cart');
    writeFileSync(join(it.silver, 'pvc-uid-of-cart', 'file'), 'x');
    it.api.remove(paths.claims, 'cart');
    await eventually(looks).toBe(1);
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(readdirSync(join(it.silver, 'pvc-uid-of-cart'))).toEqual(['file']);
  });

  test('that was deleted is forgotten after the cleanup of its volume', async () => {
    const controller = await refusedOnce('cart');
    it.api.remove(paths.claims, 'cart');
    await eventually(() => it.volumes()).toEqual([]);
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    it.api.put(paths.claims, aClaim('cart', { volumeName: 'by-hand' }));
    await eventually(() => it.caches.claims.get('shop/cart')).toBeDefined();
    await eventually(() => controller.counts()).toMatchObject({ waiting: 0, running: 0 });
    expect(looks()).toBe(1);
  });

  test('keeps its volume if only the cache misses the claim', async () => {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    let refused = 0;
    let isGone = false;
    it.api.intercept = ({ method, url = '' }, response) => {
      if (method === 'GET' && isGone && url === `${paths.claims}/cart`) {
        response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(aClaim('cart')));
        return true;
      }
      if (method !== 'POST' || url !== paths.volumes) return false;
      refused++;
      it.api.refuse(response, 500, 'InternalError');
      return true;
    };
    const controller = it.start(createProvisioning);
    await eventually(() => refused).toBeGreaterThan(0);
    isGone = true;
    it.api.remove(paths.claims, 'cart');
    await eventually(() => it.api.requests.filter((one) => one === `GET ${paths.claims}/cart`).length).toBeGreaterThan(
      0,
    );
    await eventually(() => controller.counts().running).toBe(0);
    expect(await it.volumes()).toHaveLength(1);
  });

  test('gets no volume while the cleanup checks whether the claim still exists', async () => {
    const controller = await refusedOnce('cart');
    const asking = Promise.withResolvers<ServerResponse>();
    it.api.intercept = ({ method, url }, response) => {
      if (method !== 'GET' || url !== `${paths.claims}/cart`) return false;
      asking.resolve(response);
      return true;
    };
    it.api.remove(paths.claims, 'cart');
    const response = await asking.promise;
    const { again } = controller.counts();
    it.api.put(paths.claims, aClaim('cart'));
    await eventually(() => controller.counts().again).toBe(again + 1);
    expect(await made()).toEqual([]);
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(aClaim('cart')));
    await eventually(async () => (await made()).length).toBe(1);
    expect(await it.volumes()).toHaveLength(1);
  });
});

describe('a claim with the same name as a deleted one', () => {
  const second = (): AnyObject => aClaim('cart', {}, { uid: 'uid-of-second' });
  const failed = async (): Promise<readonly (string | undefined)[]> =>
    (await it.list(events))
      .filter(({ reason }) => reason === 'ProvisioningFailed')
      .map(({ regarding }) => regarding.uid);
  const isWritten = (body: string): boolean => body.includes('"pvc-uid-of-cart"');

  test('waits neither for the cleanup of the deleted one nor for its backoff', async () => {
    it.api.put(paths.classes, aClass());
    it.api.put(paths.claims, aClaim('cart'));
    const writing = Promise.withResolvers<ServerResponse>();
    it.api.intercept = ({ method, url }, response, body) => {
      if (method !== 'POST' || url !== paths.volumes || !isWritten(body)) return false;
      writing.resolve(response);
      return true;
    };
    const controller = it.start(createProvisioning);
    const response = await writing.promise;
    it.api.remove(paths.claims, 'cart');
    // The cleanup finds the volume, and waits while the creation is in progress.
    await eventually(() => controller.counts().done).toBe(1);
    expect(await it.volumes()).toMatchObject([{ name: 'pvc-uid-of-cart' }]);
    it.api.put(paths.claims, second());
    await eventually(() => it.caches.claims.get('shop/cart')?.metadata.uid).toBe('uid-of-second');
    it.api.refuse(response, 400, 'Invalid');
    await eventually(async () => (await made()).map(({ metadata }) => metadata.name)).toEqual(['pvc-uid-of-second']);
    await eventually(async () => (await it.volumes()).map(({ name }) => name)).toEqual(['pvc-uid-of-second']);
    await eventually(() => it.notes('ProvisioningSucceeded')).toHaveLength(1);
    expect(await failed()).toEqual([]);
  });

  test('gets the same volume name as soon as the first volume is deleted', async () => {
    it.api.put(paths.classes, aClass('fast', { parameters: { store: 'silver', nameTemplate: '{namespace}-{name}' } }));
    it.api.put(paths.claims, aClaim('cart'));
    let isSilent = true;
    it.api.intercept = ({ method, url }, response, body) => {
      const isLook = method === 'GET' && url === `${paths.volumes}/pvc-uid-of-cart` && isSilent;
      if (isLook) it.api.refuse(response, 503, 'ServiceUnavailable', { headers: { 'retry-after': '1' } });
      else if (method === 'POST' && url === paths.volumes && isWritten(body)) it.api.refuse(response, 400, 'Invalid');
      else return false;
      return true;
    };
    const controller = it.start(createProvisioning);
    await eventually(failed).toEqual(['uid-of-cart']);
    const { terminal } = controller.counts();
    it.api.remove(paths.claims, 'cart');
    it.api.put(paths.claims, second());
    await eventually(failed).toEqual(['uid-of-cart', 'uid-of-second']);
    expect((await it.notes('ProvisioningFailed')).at(-1)).toContain('shop-cart');
    expect(controller.counts().terminal).toBe(terminal + 1);
    expect(await it.volumes()).toMatchObject([{ name: 'shop-cart', requestId: 'uid-of-cart' }]);
    isSilent = false;
    await eventually(async () => (await made()).map(({ metadata }) => metadata.name)).toEqual(['pvc-uid-of-second']);
    expect(await it.volumes()).toMatchObject([{ name: 'shop-cart', requestId: 'uid-of-second' }]);
  });
});
